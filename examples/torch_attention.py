"""Attention as a function of torch, for `--with examples/torch_attention.py:attention`."""

import torch
from torch.nn.functional import scaled_dot_product_attention

from fa_tune.core.errors import InvalidConfig


def attention(problem):
    """A call for Q, K and V [batch, seq, heads, d_head]."""
    w = problem.workload
    if unknown := set(w.unusual) - {"softmax_scale"}:
        raise InvalidConfig(f"no {', '.join(unknown)} here")
    q, k, v = (problem.inputs[name].transpose(1, 2) for name in "qkv")

    def launch():
        with torch.no_grad():
            out = scaled_dot_product_attention(
                q, k, v, is_causal=w.causal, scale=w.scale, enable_gqa=w.kv_heads != w.heads
            )
        return {"o": out.transpose(1, 2)}

    return launch
