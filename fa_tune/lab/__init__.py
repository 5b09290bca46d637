"""Recorded spaces: what every variant of a space took, so that strategies can be compared
without a GPU."""
