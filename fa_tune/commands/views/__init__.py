"""From results to text."""
