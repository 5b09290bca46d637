"""fa-tune: find, prove and keep the fastest FlashAttention forward kernel for a GPU."""

__version__ = "0.1.0"
