"""Jobs that workers do on a GPU."""
