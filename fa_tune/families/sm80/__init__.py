"""The `sm80` family: mma.sync kernels for compute capability 8.0 and later."""
