"""Attention by the definition, and random inputs.  What kernels are judged by is in `judged.py`.

All tensors are [batch, seq, heads, d_head], V and the output with d_v for d_head.  Imported by
workers and CPU tests only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from fa_tune import operations
from fa_tune.core.inputs import NORMAL, InputSpec
from fa_tune.core.workload import Workload
from fa_tune.gpu import caches
from fa_tune.gpu.draw import draw
from fa_tune.gpu.hook_twin import twin_of
from fa_tune.operations.forward.spec import sequences

E4M3, E4M3_LARGEST = torch.float8_e4m3fn, 448.0
SMALLEST = 2.0**-60  # of a largest element
MAX_SCORES = 2**31  # at once: 8 GiB in fp32, and softmax takes that twice


@dataclass(frozen=True)
class Inputs:
    """Q, K and V of one workload, its sinks [heads] and its slopes [batch, heads] in fp32; where
    sequences begin, their lengths and their pages, in int32; of K and V in e4m3 scales [batch,
    kv_heads].  Score hooks count its batch elements from `first_element` on."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    sink: torch.Tensor | None = None
    alibi_slopes: torch.Tensor | None = None
    cu_seqlens_q: torch.Tensor | None = None
    cu_seqlens_kv: torch.Tensor | None = None
    cache_seqlens: torch.Tensor | None = None
    page_table: torch.Tensor | None = None
    first_element: int = 0
    k_scale: torch.Tensor | None = None
    v_scale: torch.Tensor | None = None

    def wide(self) -> Inputs:
        """K and V in the type of Q: exact, since scales are powers of two."""
        if self.k_scale is None or self.v_scale is None:
            return self
        shared = self.cache_seqlens is not None
        k, v = (
            (tensor.float() * (scale[:1] if shared else scale)[:, None, :, None]).to(self.q.dtype)
            for tensor, scale in ((self.k, self.k_scale), (self.v, self.v_scale))
        )
        return replace(self, k=k, v=v, k_scale=None, v_scale=None)

    def narrow(self) -> Inputs:
        """K and V as e4m3, with scales."""
        # Of a cache pages belong to no batch element.
        batch = 1 if self.cache_seqlens is not None else len(self.q)
        (k, k_scale), (v, v_scale) = (_narrowed(tensor, batch) for tensor in (self.k, self.v))
        k_scale, v_scale = (s.expand(len(self.q), -1) for s in (k_scale, v_scale))
        return replace(self, k=k, v=v, k_scale=k_scale, v_scale=v_scale)

    @property
    def tensors(self) -> Mapping[str, torch.Tensor]:
        """The tensors that are there by the names that the operation gives them."""
        found = {"q": self.q, "k": self.k, "v": self.v}
        names: tuple[str, ...] = ("sink", "alibi_slopes", "cu_seqlens_q", "cu_seqlens_kv")
        names += ("cache_seqlens", "page_table", "k_scale", "v_scale")
        more = {name: getattr(self, name) for name in names}
        return found | {name: tensor for name, tensor in more.items() if tensor is not None}


def empty_outputs(
    workload: Workload, *, fill: float | None = None, device: str = "cuda"
) -> dict[str, torch.Tensor]:
    """Room for every output of the workload's operation, filled if asked."""
    found = {}
    for spec in operations.get(workload.op).tensors(workload):
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
    q, k, v = ((tensor + mean).to(dtype) for tensor in drawn)
    del drawn
    more = score_inputs(workload, seed=seed, device=device) | beginnings(workload, device=device)
    if workload.cached:
        k, v, known = caches.of_sequences(k, v, workload, seed=seed)
        more |= known
    found = Inputs(*(tensor[:, :, extra_heads:] for tensor in (q, k, v)), **more)
    return found.narrow() if workload.kv_e4m3 else found


def _narrowed(tensor: torch.Tensor, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A [batch, seq, heads, d_head] tensor as e4m3, and the scales [batch, heads] of its heads:
    the least powers of two with which nothing is too large.  With a `batch` of 1 they are those of
    all elements.  Strides are the tensor's."""
    largest = tensor.float().abs().nan_to_num(0.0).amax((1, 3))
    if batch == 1:
        largest = largest.amax(0, keepdim=True)
    scale = torch.exp2(torch.ceil(torch.log2(largest.clamp(min=SMALLEST) / E4M3_LARGEST)))
    room = torch.empty_strided(tensor.shape, tensor.stride(), dtype=E4M3, device=tensor.device)
    return room.copy_((tensor.float() / scale[:, None, :, None]).to(E4M3)), scale


def score_inputs(workload: Workload, *, seed: int, device: str) -> dict[str, torch.Tensor]:
    """The sinks and slopes that a workload asks for.  Sinks have a standard deviation of 2 nats;
    slopes go down in powers of two from head to head, and differ from batch to batch."""
    found = {}
    w = workload
    generator = torch.Generator(device=device).manual_seed(seed + 1)
    if w.sink:
        found["sink"] = 2 * torch.randn(w.heads, generator=generator, device=device)
    if w.alibi:
        exponents = torch.arange(1, w.heads + 1, device=device) * (-8 / w.heads)
        factors = torch.rand((w.batch, 1), generator=generator, device=device) + 0.5
        found["alibi_slopes"] = factors * torch.exp2(exponents)
    return found


def beginnings(workload: Workload, *, device: str = "cuda") -> dict[str, torch.Tensor]:
    """Where the sequences of a packed batch begin and the last one ends, int32 [batch + 1]; none
    of another workload."""
    if not workload.packed:
        return {}
    lengths = torch.tensor(workload.members, dtype=torch.int32)
    ends = torch.cat((torch.zeros(1, 2, dtype=torch.int32), lengths.cumsum(0, dtype=torch.int32)))
    on_device = ends.T.contiguous().to(device)
    return {"cu_seqlens_q": on_device[0], "cu_seqlens_kv": on_device[1]}


@dataclass(frozen=True)
class Part:
    """A sequence of a packed batch, as a problem of its own."""

    workload: Workload
    inputs: Inputs
    rows: slice  # of Q and O


def parts(inputs: Inputs, workload: Workload) -> Iterator[Part]:
    """The sequences of a packed batch that have queries and keys."""
    whole = iter(sequences(workload))
    row_q = row_kv = 0
    for i, (q, kv) in enumerate(workload.members):
        rows, keys = slice(row_q, row_q + q), slice(row_kv, row_kv + kv)
        row_q, row_kv = rows.stop, keys.stop
        if q and kv:
            cut = (inputs.q[:, rows], inputs.k[:, keys], inputs.v[:, keys])
            slopes = None if inputs.alibi_slopes is None else inputs.alibi_slopes[i : i + 1]
            own = Inputs(*cut, sink=inputs.sink, alibi_slopes=slopes, first_element=i)
            yield Part(next(whole), own, rows)


def attention(
    inputs: Inputs,
    workload: Workload,
    *,
    dtype: torch.dtype | None = None,
    diagonal: int | None = None,
) -> torch.Tensor:
    """softmax(scale · Q Kᵀ) V computed in `dtype` (None: the inputs' own), one head at a time,
    and of very long ones so many queries that their scores fit the memory.

    Query i sees keys by its place i + diagonal (None: the workload's).  A row that sees nothing
    gives 0.  Returns [batch, seq_len_q, heads, d_v] in `dtype`, or fp32 where that
    is a type of 16 bits.
    """
    inputs = inputs.wide()
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
                slope = None if inputs.alibi_slopes is None else inputs.alibi_slopes[b, h]
                scores = changed_scores(
                    scores,
                    workload,
                    slope,
                    rows=rows,
                    diagonal=diagonal,
                    of=(b + inputs.first_element, h),
                )
                if hidden is not None:
                    scores = scores.masked_fill(hidden, float("-inf"))
                if inputs.sink is not None:
                    sink = inputs.sink[h].to(scores.dtype).expand(len(scores), 1)
                    scores = torch.cat((scores, sink), -1)
                weights = torch.softmax(scores, -1)[:, : workload.seq_len_kv]
                if hidden is not None:
                    weights = weights.masked_fill(hidden, 0)
                out[b, rows, h] = (weights @ inputs.v[b, :, h // group].to(dtype)).to(wide)
    return out


def changed_scores(
    scores: torch.Tensor,
    workload: Workload,
    slopes: torch.Tensor | None,
    *,
    rows: slice | None = None,
    diagonal: int | None = None,
    of: tuple[Any, ...] = (),
) -> torch.Tensor:
    """What soft cap, ALiBi and a hook make of scaled products [..., rows, seq_len_kv]; `slopes` and
    `of`, the numbers of batch elements and heads, in shapes that go with them."""
    if workload.softcap is not None:
        scores = torch.tanh(scores / workload.softcap) * workload.softcap
    if slopes is not None:
        away = places(workload, scores.device, diagonal, rows=rows).abs().to(scores.dtype)
        scores = scores - slopes.to(scores.dtype) * away
    if workload.score_hook is not None:
        queries = torch.arange(workload.seq_len_q, device=scores.device)[rows or slice(None), None]
        keys = torch.arange(workload.seq_len_kv, device=scores.device)
        scores = twin_of(workload.score_hook)(scores, *of, queries, keys)
    return scores


def hidden_pairs(
    workload: Workload,
    device: torch.device,
    diagonal: int | None = None,
    *,
    rows: slice | None = None,
) -> torch.Tensor | None:
    """Which keys each query, or those of `rows`, does not see, bool [rows, seq_len_kv]; None
    where it sees all."""
    left, right = workload.window_left, 0 if workload.causal else workload.window_right
    if left is None and right is None:
        return None
    place = places(workload, device, diagonal, rows=rows)
    hidden = torch.zeros_like(place, dtype=torch.bool)
    if right is not None:
        hidden |= place > right
    if left is not None:
        hidden |= place < -left
    return hidden


def places(
    workload: Workload,
    device: torch.device,
    diagonal: int | None = None,
    *,
    rows: slice | None = None,
) -> torch.Tensor:
    """How far each key lies behind the place i + diagonal of each query, or of those of `rows`,
    [rows, seq_len_kv]."""
    queries = torch.arange(workload.seq_len_q, device=device)[rows or slice(None), None]
    columns = torch.arange(workload.seq_len_kv, device=device)[None]
    return columns - queries - (workload.diagonal if diagonal is None else diagonal)
