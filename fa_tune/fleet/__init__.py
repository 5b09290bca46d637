"""One or several GPUs at work."""
