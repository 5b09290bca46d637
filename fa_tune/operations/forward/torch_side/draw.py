"""Draws Q, K and V: what `core.inputs` names, as tensors.

A raise that holds for whole keys (a sink, a falling block) goes through channels of Q and K that
hold nothing else, so that it is exact: the product of two elements of which one is a power of two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import cycle, islice

import torch

from fa_tune.core.inputs import (
    FALLING_BLOCK,
    HEADS,
    RANK,
    RANK_SIGMA,
    RISE,
    ROW_SPREAD,
    TEMPERATURES,
    InputSpec,
    Kind,
)
from fa_tune.core.workload import Workload
from fa_tune.operations.forward.torch_side.far_keys import add_far_keys

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # Q, K and V

PLAIN = 2.0**5  # a factor up to this is for Q alone, as it is where a model learnt it
_RAISED = (Kind.SINK, Kind.FALLING, Kind.FAR_KEYS)  # some keys, beside scores of one nat
DIGIT = 64  # blocks are counted in two digits of this, each exact in every dtype


def draw(
    spec: InputSpec, workload: Workload, *, seed: int, device: str, extra_heads: int = 0
) -> Tensors:
    """Q, K and V in fp32, the same for one seed; each with `extra_heads` more heads at its
    beginning than the workload has."""
    w = workload.dense(*workload.rows) if workload.packed else workload  # in one row
    if spec.kind is Kind.FILE:
        return _of_file(spec.path, w, device, extra_heads)
    generator = torch.Generator(device=device).manual_seed(seed)

    def normal(seq_len: int, heads: int, d_head: int = w.d_head) -> torch.Tensor:
        shape = (w.batch, seq_len, heads + extra_heads, d_head)
        return torch.randn(shape, generator=generator, device=device)

    q = normal(w.seq_len_q, w.heads)
    k = normal(w.seq_len_kv, w.kv_heads)
    v = normal(w.seq_len_kv, w.kv_heads, w.d_v)
    one = torch.ones((), device=device)
    if spec.kind in _RAISED:
        _scale(q, k, w, one)
    if spec.kind is Kind.PEAKED:
        _scale(q, k, w, torch.tensor(spec.nats, device=device))
    elif spec.kind is Kind.SINK:
        _add_sink(q, k, w, one)
    elif spec.kind is Kind.FALLING:
        _let_fall(q, k, w, spec.nats)
    elif spec.kind is Kind.FAR_KEYS:
        add_far_keys(q, k, workload, generator)
    elif spec.kind is Kind.LOW_RANK:
        _lower_rank(q, k)
        _scale(q, k, w, torch.tensor(RANK_SIGMA, device=device))
    elif spec.kind is Kind.TEMPERATURES:
        of_rows = torch.randn((*q.shape[:3], 1), generator=generator, device=device)
        _scale(q, k, w, _in_turn(TEMPERATURES, q) * torch.exp(ROW_SPREAD * of_rows))
    elif spec.kind is Kind.TRAINED:
        sigmas, sinks = zip(*HEADS, strict=True)
        _scale(q, k, w, _in_turn(sigmas, q))
        _add_sink(q, k, w, _in_turn(sinks, q))
    return q, k, v


def _scale(q: torch.Tensor, k: torch.Tensor, w: Workload, sigma: torch.Tensor) -> None:
    """Give scores the standard deviation `sigma` in nats: one, or one per query head or query."""
    needed = 1.0 / (w.scale * math.sqrt(w.d_head))
    of_k = 1.0 if 1.0 / PLAIN <= needed <= PLAIN else math.sqrt(needed)
    q *= sigma * (needed / of_k)
    k *= of_k


def _add_sink(q: torch.Tensor, k: torch.Tensor, w: Workload, where: torch.Tensor) -> None:
    """Raise key 0 by RISE nats; `where` is 1, or 0 where a query head is to have no sink."""
    unit = _power_of_two(RISE / w.scale)
    q[..., :1] = where * unit
    k[..., 0] = 0.0
    k[:, 0, :, 0] = RISE / w.scale / unit


def _let_fall(q: torch.Tensor, k: torch.Tensor, w: Workload, nats: float) -> None:
    """Put each block of keys so many nats below the one before it."""
    unit = _power_of_two(nats / w.scale)  # of K; the rest is Q's
    block = torch.arange(w.seq_len_kv, device=k.device) // FALLING_BLOCK
    q[..., 0] = nats / w.scale / unit * DIGIT
    k[..., 0] = (-unit * (block // DIGIT))[None, :, None]
    q[..., 1] = nats / w.scale / unit
    k[..., 1] = (-unit * (block % DIGIT))[None, :, None]


def _lower_rank(q: torch.Tensor, k: torch.Tensor) -> None:
    """Bring Q and K to RANK directions, which have all channels in them; the standard deviation of
    scores stays what it was."""
    d_head = q.shape[-1]
    rank = min(RANK, d_head)
    # Columns of a cosine transform: orthonormal, and the same for all seeds.
    place = torch.arange(d_head, device=q.device) + 0.5
    basis = torch.cos(
        math.pi / d_head * torch.arange(1, rank + 1, device=q.device)[:, None] * place
    )
    basis /= torch.linalg.vector_norm(basis, dim=1, keepdim=True)
    for tensor in (q, k):
        tensor[:] = tensor[..., :rank] @ basis * (d_head / rank) ** 0.25


def _power_of_two(product: float) -> float:
    """About the root of a product: one of two factors that are far from any dtype's limits."""
    return 2.0 ** round(math.log2(product) / 2.0)


def _in_turn(of_heads: Sequence[float], q: torch.Tensor) -> torch.Tensor:
    """These in turn over batch and heads, [batch, 1, heads, 1]."""
    batch, _, heads, _ = q.shape
    repeated = list(islice(cycle(of_heads), batch * heads))
    return torch.tensor(repeated, dtype=q.dtype, device=q.device).view(batch, 1, heads, 1)


def _of_file(path: str, w: Workload, device: str, extra_heads: int) -> Tensors:
    """The beginning of a file's sequences, its batch and heads repeated as often as needed."""

    def part(tensor: torch.Tensor, seq_len: int, heads: int) -> torch.Tensor:
        batches = torch.arange(w.batch) % tensor.shape[0]
        wanted = torch.arange(-extra_heads, heads) % tensor.shape[2]
        return tensor[:, :seq_len][batches][:, :, wanted].to(device, torch.float32)

    q, k, v = _load(path)
    of_keys = w.seq_len_kv, w.kv_heads
    return part(q, w.seq_len_q, w.heads), part(k, *of_keys), part(v, *of_keys)


@lru_cache(maxsize=1)
def _load(path: str) -> Tensors:
    from safetensors import safe_open  # only who gives a file waits for it

    with safe_open(path, framework="pt") as file:
        return file.get_tensor("q"), file.get_tensor("k"), file.get_tensor("v")
