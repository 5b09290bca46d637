"""Attention on tensors of one's own, by what the registry holds.

from fa_tune.runtime import attention

out = attention(q, k, v, causal=True)  # q: [batch, seq_len, heads, d_head] on the GPU

`attention` is that of `fa_tune.op`.
"""

from typing import Any

from fa_tune.choice.tensors import workload_of
from fa_tune.runtime.dispatch import Attention, Chosen

__all__ = ["Attention", "Chosen", "attention", "workload_of"]


def __getattr__(name: str) -> Any:
    """`attention`, for which C++ may have to be compiled, is loaded when it is asked for."""
    if name == "attention":
        from fa_tune.op import attention

        return attention
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
