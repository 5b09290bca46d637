"""Attention by the definition, which everything else is compared with, and tensors by name."""

import itertools

import torch

from fa_tune.core.workload import Workload
from fa_tune.operations.base import Tensors
from fa_tune.operations.forward.torch_side.all_inputs import wide
from fa_tune.operations.forward.torch_side.scores import changed_scores, hidden_pairs


def qkv(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **more: torch.Tensor | None
) -> dict[str, torch.Tensor]:
    """The inputs of a forward pass; what is None is not there."""
    given = {"q": q, "k": k, "v": v, **more}
    return {name: tensor for name, tensor in given.items() if tensor is not None}


def attention(
    inputs: Tensors,
    workload: Workload,
    *,
    dtype: torch.dtype | None = None,
    diagonal: int | None = None,
    first: int = 0,
) -> torch.Tensor:
    """softmax(scale · Q Kᵀ) V computed in `dtype` (None: the inputs' own), one head at a time.

    Query i sees keys by its place i + diagonal (None: the workload's).  A row that sees nothing
    gives 0.  Hooks count batch elements from `first` on.  Returns [batch, seq_len_q, heads, d_v]
    in `dtype`, or fp32 where that is a type of 16 bits.
    """
    inputs, w = wide(inputs), workload
    dtype = dtype or inputs["q"].dtype
    at_least_fp32 = torch.promote_types(dtype, torch.float32)
    shape = (*inputs["q"].shape[:3], inputs["v"].shape[3])
    out = torch.empty(shape, dtype=at_least_fp32, device=inputs["q"].device)
    hidden = hidden_pairs(w, out.device, diagonal)
    slopes = inputs.get("alibi_slopes")
    for b, h in itertools.product(range(w.batch), range(w.heads)):
        q = inputs["q"][b, :, h].to(dtype) * w.scale
        k, v = (inputs[n][b, :, h * w.kv_heads // w.heads].to(dtype) for n in "kv")
        slope = None if slopes is None else slopes[b, h]
        scores = changed_scores(q @ k.T, w, slope, diagonal=diagonal, of=(b + first, h))
        if hidden is not None:
            scores = scores.masked_fill(hidden, float("-inf"))
        if "sink" in inputs:
            sink = inputs["sink"][h].to(scores.dtype).expand(len(scores), 1)
            scores = torch.cat((scores, sink), -1)
        weights = torch.softmax(scores, -1)[:, : w.seq_len_kv]
        if hidden is not None:
            weights = weights.masked_fill(hidden, 0)
        out[b, :, h] = (weights @ v).to(at_least_fp32)
    return out
