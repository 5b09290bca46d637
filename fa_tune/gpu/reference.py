"""Attention by the definition, and random inputs.  What kernels are judged by is in `judged.py`.

All tensors are [batch, seq, heads, d_head], V and the output with d_v for d_head.  Imported by
workers and CPU tests only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from fa_tune import ops
from fa_tune.core.inputs import NORMAL, InputSpec
from fa_tune.core.workload import Workload
from fa_tune.gpu.draw import draw

MAX_SCORES = 2**31  # at once: 8 GiB in fp32, and softmax takes that twice


@dataclass(frozen=True)
class Inputs:
    """Q, K and V of one workload."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor

    @property
    def tensors(self) -> Mapping[str, torch.Tensor]:
        """The tensors by the names that the operation gives them."""
        return {"q": self.q, "k": self.k, "v": self.v}


def empty_outputs(
    workload: Workload, *, fill: float | None = None, device: str = "cuda"
) -> dict[str, torch.Tensor]:
    """Room for every output of the workload's operation, filled if asked."""
    found = {}
    for spec in ops.get(workload.op).tensors(workload):
        if spec.output:
            dtype = spec.dtype.to_torch_dtype() if spec.dtype else torch.float32
            room = torch.empty(spec.shape, dtype=dtype, device=device)
            found[spec.name] = room if fill is None else room.fill_(fill)
    return found


def make_inputs(
    workload: Workload,
    *,
    seed: int,
    device: str = "cuda",
    mean: float = 0.0,
    extra_heads: int = 0,
    spec: InputSpec = NORMAL,
) -> Inputs:
    """Inputs as `spec` describes them, `mean` added to every element, the same for one seed.

    `extra_heads` > 0 cuts the tensors out of larger ones, so that no stride is the natural one.
    """
    # Drawn in fp32 and then rounded, so that both dtypes see the same numbers.
    drawn = draw(spec, workload, seed=seed, device=device, extra_heads=extra_heads)
    dtype = workload.dtype.to_torch_dtype()
    return Inputs(*((tensor + mean).to(dtype)[:, :, extra_heads:] for tensor in drawn))


def attention(
    inputs: Inputs,
    workload: Workload,
    *,
    dtype: torch.dtype | None = None,
    diagonal: int | None = None,
) -> torch.Tensor:
    """softmax(scale · Q Kᵀ) V computed in `dtype` (None: the inputs' own), one head at a time,
    and of very long ones so many queries that their scores fit the memory.

    Causal: query i sees key j when j ≤ i + diagonal (None: the workload's).  A row that sees
    nothing gives 0.  Returns [batch, seq_len_q, heads, d_v] in `dtype`, or fp32 where that
    is a type of 16 bits.
    """
    dtype = dtype or inputs.q.dtype
    wide = torch.promote_types(dtype, torch.float32)
    shape = (*inputs.q.shape[:3], inputs.v.shape[3])
    out = torch.empty(shape, dtype=wide, device=inputs.q.device)
    group = workload.heads // workload.kv_heads
    at_once = max(1, MAX_SCORES // workload.seq_len_kv)
    for start in range(0, workload.seq_len_q, at_once):
        rows = slice(start, min(start + at_once, workload.seq_len_q))
        hidden = hidden_pairs(workload, inputs.q.device, diagonal, rows=rows)
        for b in range(workload.batch):
            for h in range(workload.heads):
                q = inputs.q[b, rows, h].to(dtype) * workload.scale
                k = inputs.k[b, :, h // group].to(dtype)
                scores = q @ k.T
                if hidden is not None:
                    scores = scores.masked_fill(hidden, float("-inf"))
                    weights = torch.softmax(scores, -1).masked_fill(hidden, 0)
                else:
                    weights = torch.softmax(scores, -1)
                out[b, rows, h] = (weights @ inputs.v[b, :, h // group].to(dtype)).to(wide)
    return out


def log_sum_exp(inputs: Inputs, workload: Workload, *, diagonal: int | None = None) -> torch.Tensor:
    """log Σ exp(scale · q · k) of every row in fp32, [batch, heads, seq_len_q]; −inf for a row
    that sees nothing."""
    q, k = (t.transpose(1, 2).float() for t in (inputs.q, inputs.k))
    k = k.repeat_interleave(workload.heads // workload.kv_heads, dim=1)
    scores = q @ k.transpose(-1, -2) * workload.scale
    hidden = hidden_pairs(workload, q.device, diagonal)
    if hidden is not None:
        scores = scores.masked_fill(hidden, float("-inf"))
    return torch.logsumexp(scores, -1)


def hidden_pairs(
    workload: Workload,
    device: torch.device,
    diagonal: int | None = None,
    *,
    rows: slice | None = None,
) -> torch.Tensor | None:
    """Which keys each query, or those of `rows`, does not see, bool [rows, seq_len_kv]; None
    without a mask."""
    if not workload.causal:
        return None
    queries = torch.arange(workload.seq_len_q, device=device)[rows or slice(None), None]
    columns = torch.arange(workload.seq_len_kv, device=device)[None]
    return columns > queries + (workload.diagonal if diagonal is None else diagonal)
