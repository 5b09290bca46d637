"""Vocabulary without behaviour: workloads, variants, measurements, errors, units, options."""
