"""The `sm90_bwd` family: the backward pass by wgmma and TMA."""
