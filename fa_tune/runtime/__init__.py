"""Attention on tensors of one's own, by what the registry holds.

from fa_tune.runtime import attention

out = attention(q, k, v, causal=True)  # q: [batch, seq_len, heads, d_head] on the GPU

`attention` is the operator of `fa_tune.op`.  `Attention` reads a registry of one's own.
"""

from typing import TYPE_CHECKING, Any

from fa_tune.core.tensors import workload_of
from fa_tune.runtime.dispatch import Attention, Chosen

if TYPE_CHECKING:
    from fa_tune.op import attention

__all__ = ["Attention", "Chosen", "attention", "workload_of"]


def __getattr__(name: str) -> Any:
    """The operator when it is asked for: its first import compiles C++."""
    if name != "attention":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fa_tune.op import attention as operator

    return operator
