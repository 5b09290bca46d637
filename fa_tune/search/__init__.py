"""What to try, what was tried, and which of it wins."""
