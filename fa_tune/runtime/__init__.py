"""Attention on tensors of one's own, by what the registry holds.

from fa_tune.runtime import attention

out = attention(q, k, v, causal=True)  # q: [batch, seq_len, heads, d_head] on the GPU
"""

from fa_tune.core.tensors import workload_of
from fa_tune.runtime.dispatch import Attention, Chosen, attention

__all__ = ["Attention", "Chosen", "attention", "workload_of"]
