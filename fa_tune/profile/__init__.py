"""Measuring with Nsight Compute: what to ask it, how to read its answer, what went wrong."""
