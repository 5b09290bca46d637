"""fa-tune: find, prove and keep the fastest FlashAttention kernels for a GPU."""

__version__ = "0.1.0"
