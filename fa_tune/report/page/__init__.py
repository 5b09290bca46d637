"""Results as one HTML file that needs nothing else: figures, tables and where they come from."""
