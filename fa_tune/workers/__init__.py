"""Supervised child processes: no torch, no CUDA."""
