"""Judges a kernel on a case by the product's criterion and more: tensors laid out as the case says,
in surroundings of NaN that must neither be read nor written; two launches that must agree to the
bit.

A kernel is anything that writes O and the log-sum-exp, so that the judge can be judged.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from fa_tune.core.workload import Workload
from fa_tune.operations.base import CheckCase, Tensors
from fa_tune.operations.forward.torch_side import expected
from fa_tune.operations.forward.torch_side.all_inputs import score_inputs
from fa_tune.operations.forward.torch_side.scores import changed_scores, hidden_pairs
from fa_tune.operations.torch_side import judge
from fa_tune.operations.verification import fault
from tests.gpu.cases import Case
from tests.tensors import qkv

# (workload, Q, K and V, O, log-sum-exp or None): writes the last two.
KernelCall = Callable[[Workload, Tensors, torch.Tensor, torch.Tensor | None], None]

MEAN = 0.25  # off zero, so that a row that is lost or counted twice shows
GUARD = 64  # elements before and behind a tensor that stands alone
SCORES_AT_ONCE = 1 << 26
LSE_TOLERANCE = 1e-3  # absolute, and of the value


@dataclasses.dataclass(frozen=True)
class Room:
    """A tensor inside a larger one, both filled with NaN."""

    whole: torch.Tensor
    inside: torch.Tensor

    def clear(self) -> None:
        """Fill with NaN again."""
        self.whole.fill_(math.nan)

    def is_clean_outside(self) -> bool:
        """Whether only the inside was written; call when none of it is NaN."""
        outside = self.whole.numel() - self.inside.numel()
        return int(self.whole.isnan().sum()) - int(self.inside.isnan().sum()) == outside


def room(shape: tuple[int, ...], layout: str, dtype: torch.dtype, device: str) -> Room:
    """Room for [batch, seq, heads, d_head] in one of the layouts of a single tensor."""
    batch, seq, heads, d = shape
    if layout == "strided":  # the rim is different on every side
        size = (batch + 1, seq + 3, heads + 2, d + 24)
        whole = torch.full(size, math.nan, dtype=dtype, device=device)
        return Room(whole, whole[1:, 2:-1, 1:-1, 8 : 8 + d])
    size = (math.prod(shape) + 2 * GUARD,)
    whole = torch.full(size, math.nan, dtype=dtype, device=device)
    inner = whole[GUARD:-GUARD]
    if layout == "transposed":
        return Room(whole, inner.view(batch, heads, seq, d).transpose(1, 2))
    return Room(whole, inner.view(shape))


def inputs_for(
    workload: Workload, layout: str, seed: int, device: str, growth: float | None = None
) -> Tensors:
    """Random Q, K and V in the layout; see `LAYOUTS` and `GROWTHS` in tests/gpu/cases.py."""
    generator = torch.Generator(device=device).manual_seed(seed)
    dtype = workload.dtype.to_torch_dtype()
    w = workload

    def draw(target: torch.Tensor) -> torch.Tensor:
        drawn = torch.randn(target.shape, generator=generator, device=device)
        return target.copy_(drawn + MEAN)

    if layout == "packed":  # Q, K and V of a token side by side
        whole = room((w.batch, w.seq_len_q, w.heads + 2 * w.kv_heads, w.d_head), "", dtype, device)
        q, k, v = draw(whole.inside).split((w.heads, w.kv_heads, w.kv_heads), dim=2)
        return qkv(q, grown(k, growth), v, **score_inputs(w, seed=seed, device=device))
    rows = 1 if layout == "expanded" else w.batch  # one K and V for the whole batch
    q = draw(room((w.batch, w.seq_len_q, w.heads, w.d_head), layout, dtype, device).inside)
    shape = (rows, w.seq_len_kv, w.kv_heads)
    k, v = (draw(room((*shape, d), layout, dtype, device).inside) for d in (w.d_head, w.d_v))
    grown(k, growth)
    if layout == "expanded":
        k, v = (t.expand(w.batch, -1, -1, -1) for t in (k, v))
    return qkv(q, k, v, **score_inputs(w, seed=seed, device=device))


def grown(k: torch.Tensor, growth: float | None) -> torch.Tensor:
    """K [batch, seq, heads, d_head] itself, made `growth` times as large at its last key and
    hardly anything at its first; the other way round if `growth` is negative."""
    if growth is not None:
        ends = (0.02, 1.0) if growth > 0 else (1.0, 0.02)
        factors = torch.linspace(*ends, k.shape[1], device=k.device) * abs(growth)
        k.mul_(factors[:, None, None])
    return k


def attention(
    inputs: Tensors, workload: Workload, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """softmax(scale · Q Kᵀ) V in `dtype`, step by step as torch does it, [batch, seq, heads,
    d_v]; and the log-sum-exp of these scores in fp64, [batch, heads, seq_len_q]."""
    w = workload
    group = w.heads // w.kv_heads
    hidden = hidden_pairs(w, inputs["q"].device)
    shape = (*inputs["q"].shape[:3], inputs["v"].shape[3])
    out = torch.empty(shape, dtype=dtype, device=inputs["q"].device)
    lse = torch.empty(
        (w.batch, w.heads, w.seq_len_q), dtype=torch.float64, device=inputs["q"].device
    )
    for batch, kv in _chunks(w):
        heads = slice(kv.start * group, kv.stop * group)
        q = inputs["q"][batch, :, heads].transpose(1, 2).unflatten(1, (-1, group)).to(dtype)
        k, v = (
            t[batch, :, kv].transpose(1, 2)[:, :, None].to(dtype)
            for t in (inputs["k"], inputs["v"])
        )
        slopes = None
        if "alibi_slopes" in inputs:
            slopes = inputs["alibi_slopes"][batch, heads].unflatten(1, (-1, group))[..., None, None]
        batches = torch.arange(w.batch, device=q.device)[batch].view(-1, 1, 1, 1, 1)
        of_heads = torch.arange(w.heads, device=q.device)[heads].unflatten(0, (-1, group))
        of = (batches, of_heads[..., None, None])
        scores = changed_scores((q @ k.transpose(-1, -2)) * w.scale, w, slopes, of=of)
        if hidden is not None:
            scores = scores.masked_fill(hidden, -math.inf)
        if "sink" in inputs:
            sink = inputs["sink"][heads].unflatten(0, (-1, group))[..., None, None]
            sink = sink.to(scores.dtype)
            scores = torch.cat((scores, sink.expand(*scores.shape[:-1], 1)), -1)
        weights = torch.softmax(scores, -1)[..., : w.seq_len_kv]
        if hidden is not None:
            weights = weights.masked_fill(hidden, 0)  # a row without keys is NaN
        out[batch, :, heads] = (weights @ v).flatten(1, 2).transpose(1, 2)
        lse[batch, heads] = torch.logsumexp(scores.double(), -1).flatten(1, 2)
    return out, lse


def _chunks(w: Workload) -> Iterator[tuple[slice, slice]]:
    """Batches and kv heads to be computed together."""
    group_scores = w.heads // w.kv_heads * w.seq_len_q * w.seq_len_kv
    fit = max(1, SCORES_AT_ONCE // group_scores)
    if fit < w.kv_heads:
        for b in range(w.batch):
            for first in range(0, w.kv_heads, fit):
                yield slice(b, b + 1), slice(first, min(first + fit, w.kv_heads))
        return
    step = fit // w.kv_heads
    for b in range(0, w.batch, step):
        yield slice(b, min(b + step, w.batch)), slice(0, w.kv_heads)


def check(case: Case, kernel: KernelCall, device: str = "cuda") -> dict[str, Any]:
    """Everything that can be said of the kernel's results on a case, as plain data."""
    w = case.workload
    inputs = inputs_for(w, case.layout, case.seed, device, case.growth)
    out_layout = case.layout if case.layout in ("strided", "transposed") else "plain"
    out = room((*inputs["q"].shape[:3], w.d_v), out_layout, inputs["q"].dtype, device)
    lse = room((w.batch, w.heads, w.seq_len_q, 1), "plain", torch.float32, device)

    def launch() -> tuple[torch.Tensor, torch.Tensor]:
        out.clear()
        lse.clear()
        kernel(w, inputs, out.inside, lse.inside[..., 0] if w.lse else None)
        return out.inside.clone(), lse.inside[..., 0].clone()

    first, first_lse = launch()
    second, second_lse = launch()
    exact, exact_lse = attention(inputs, w, torch.float64)
    empty = exact_lse == -math.inf
    hidden = hidden_pairs(w, inputs["q"].device)  # a sink makes a row's sum, but no value
    blind = empty if hidden is None else hidden.all(-1).expand_as(empty)
    error = largest(first.double() - exact)
    limit = math.nextafter(error, math.inf)
    if case.strict:
        limit = 2 * largest(attention(inputs, w, inputs["q"].dtype)[0].double() - exact)
    outputs = {"o": first, "lse": first_lse} if w.lse else {"o": first}
    figures: dict[str, Any] = {
        "name": case.name,
        "error": error,
        "limit": limit,
        "criterion": fault(judge(CheckCase(w), expected(w, inputs), outputs)),
        "repeats": equal_bits(first, second),
        "clean_outside": out.is_clean_outside(),
        "n_empty": int(blind.sum()),
        "empty_rows_are_zero": bool((first.transpose(1, 2)[blind] == 0).all()),
        "lse_clean_outside": lse.is_clean_outside(),
    }
    if w.lse:
        seen = ~empty
        allowed = LSE_TOLERANCE * (1 + exact_lse[seen].abs())
        figures |= {
            "lse_error_of_allowed": largest((first_lse[seen].double() - exact_lse[seen]) / allowed),
            "lse_of_empty_rows": bool((first_lse[empty] == -math.inf).all()),
            "lse_repeats": equal_bits(first_lse, second_lse),
        }
    return figures


def faults(figures: Mapping[str, Any]) -> list[str]:
    """What is wrong, in words; a NaN among the figures is wrong."""
    said = (
        (f"error {figures['error']:.3g} exceeds {figures['limit']:.3g}",
         figures["error"] <= figures["limit"]),
        (figures["criterion"], not figures["criterion"]),
        ("two launches differ", figures["repeats"]),
        ("it wrote beside O", figures["clean_outside"]),
        ("rows that see nothing are not 0", figures["empty_rows_are_zero"]),
        ("it wrote beside the log-sum-exp", figures["lse_clean_outside"]),
        (f"log-sum-exp is off by {figures.get('lse_error_of_allowed', 0):.3g} of what is allowed",
         figures.get("lse_error_of_allowed", 0) <= 1),
        ("log-sum-exp of empty rows is not -inf", figures.get("lse_of_empty_rows", True)),
        ("two log-sum-exps differ", figures.get("lse_repeats", True)),
    )  # fmt: skip
    return [f"{figures['name']}: {what}" for what, fine in said if not fine]


def largest(difference: torch.Tensor) -> float:
    """The largest absolute value; NaN if there is one; 0 for nothing."""
    return float(difference.abs().max()) if difference.numel() else 0.0


def equal_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bitwise equality, under which NaN is equal to itself."""
    kind = torch.int16 if a.element_size() == 2 else torch.int32
    return torch.equal(a.contiguous().view(kind), b.contiguous().view(kind))
