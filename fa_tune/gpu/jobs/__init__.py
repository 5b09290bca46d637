"""What a worker is asked to do on a GPU."""
