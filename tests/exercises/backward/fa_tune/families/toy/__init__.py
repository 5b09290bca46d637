"""A thread for each row."""
