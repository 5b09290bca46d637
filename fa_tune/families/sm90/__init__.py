"""The `sm90` family: wgmma and TMA kernels for compute capability 9.0."""
