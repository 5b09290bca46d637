"""The `sm80_bwd` family: the backward pass by mma.sync and cp.async."""
