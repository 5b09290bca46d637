"""The forward pass of attention."""
