"""Nsight Compute: its arguments, its output, its failures."""
