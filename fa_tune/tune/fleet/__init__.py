"""The GPUs that a command works on: none, one or several, here or in a Ray cluster."""
