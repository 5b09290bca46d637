"""Attention by the definition, in fp32 and in the kernel's own precision; inputs; libraries.

All tensors are [batch, seq, heads, d_head].  Imported by workers and CPU tests only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from fa_tune.errors import InvalidConfig
from fa_tune.model import Workload


@dataclass(frozen=True)
class Inputs:
    """Q, K and V of one workload."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor


def make_inputs(
    workload: Workload,
    *,
    seed: int,
    device: str = "cuda",
    mean: float = 0.0,
    extra_heads: int = 0,
) -> Inputs:
    """Normal random inputs with unit variance and the given mean, the same for one seed.

    `extra_heads` > 0 cuts the tensors out of larger ones, so that no stride is the natural one.
    """
    generator = torch.Generator(device=device).manual_seed(seed)

    def draw(seq_len: int, heads: int) -> torch.Tensor:
        shape = (workload.batch, seq_len, heads + extra_heads, workload.d_head)
        # Drawn in fp32 and then rounded, so that both dtypes see the same numbers.
        full = torch.randn(shape, generator=generator, device=device) + mean
        return full.to(workload.dtype.to_torch_dtype())[:, :, extra_heads:]

    return Inputs(
        draw(workload.seq_len_q, workload.heads),
        draw(workload.seq_len_kv, workload.kv_heads),
        draw(workload.seq_len_kv, workload.kv_heads),
    )


def attention(
    inputs: Inputs, workload: Workload, *, dtype: torch.dtype | None = None, diagonal: int = 0
) -> torch.Tensor:
    """softmax(scale · Q Kᵀ) V computed in `dtype` (None: the inputs' own), one head at a time.

    Causal: query i sees key j when j ≤ i + diagonal.  A row that sees nothing gives 0.
    Returns [batch, seq_len_q, heads, d_head] in fp32.
    """
    dtype = dtype or inputs.q.dtype
    out = torch.empty(inputs.q.shape, dtype=torch.float32, device=inputs.q.device)
    group = workload.heads // workload.kv_heads
    scale = 1 / math.sqrt(workload.d_head)
    for b in range(workload.batch):
        for h in range(workload.heads):
            q = inputs.q[b, :, h].to(dtype) * scale
            k = inputs.k[b, :, h // group].to(dtype)
            scores = q @ k.T
            if workload.causal:
                rows = torch.arange(workload.seq_len_q, device=q.device)[:, None]
                columns = torch.arange(workload.seq_len_kv, device=q.device)[None]
                hidden = columns > rows + diagonal
                scores = scores.masked_fill(hidden, float("-inf"))
                weights = torch.softmax(scores, -1).masked_fill(hidden, 0)
            else:
                weights = torch.softmax(scores, -1)
            out[b, :, h] = (weights @ inputs.v[b, :, h // group].to(dtype)).float()
    return out


def log_sum_exp(inputs: Inputs, workload: Workload, *, diagonal: int = 0) -> torch.Tensor:
    """log Σ exp(scale · q · k) of every row in fp32, [batch, heads, seq_len_q]; −inf for a row
    that sees nothing."""
    q, k = (t.transpose(1, 2).float() for t in (inputs.q, inputs.k))
    k = k.repeat_interleave(workload.heads // workload.kv_heads, dim=1)
    scores = q @ k.transpose(-1, -2) / math.sqrt(workload.d_head)
    if workload.causal:
        rows = torch.arange(workload.seq_len_q, device=q.device)[:, None]
        columns = torch.arange(workload.seq_len_kv, device=q.device)[None]
        scores = scores.masked_fill(columns > rows + diagonal, float("-inf"))
    return torch.logsumexp(scores, -1)


LibraryCall = Callable[[], torch.Tensor]


def library_call(name: str, inputs: Inputs, workload: Workload) -> LibraryCall:
    """A call of torch's SDPA held to one back end: `fa2` or `cudnn`.

    The call returns [batch, heads, seq_len_q, d_head] and raises RuntimeError if the back end
    cannot take the workload.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    backends = {"fa2": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
    if name not in backends:
        raise InvalidConfig(f"unknown reference {name!r}; known: {', '.join(backends)}")
    q, k, v = (t.transpose(1, 2) for t in (inputs.q, inputs.k, inputs.v))
    grouped = workload.kv_heads != workload.heads

    def call() -> torch.Tensor:
        with sdpa_kernel(backends[name]):
            return scaled_dot_product_attention(
                q, k, v, is_causal=workload.causal, enable_gqa=grouped
            )

    return call
