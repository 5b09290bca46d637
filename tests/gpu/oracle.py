"""Judges a kernel on a case by the product's criterion and more: tensors laid out as the case says,
in surroundings of NaN that must neither be read nor written; two launches that must agree to the
bit.

A kernel is anything that writes O and the log-sum-exp, so that the judge can be judged.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable

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
    device = inputs["q"].device
    hidden = hidden_pairs(w, device)
    shape = (*inputs["q"].shape[:3], inputs["v"].shape[3])
    out = torch.empty(shape, dtype=dtype, device=device)
    lse = torch.empty((w.batch, w.heads, w.seq_len_q), dtype=torch.float64, device=device)
    for b, kv in itertools.product(range(w.batch), range(w.kv_heads)):
        heads = slice(kv * group, (kv + 1) * group)
        q = inputs["q"][b, :, heads].transpose(0, 1).to(dtype)
        k, v = (inputs[name][b, :, kv].to(dtype) for name in "kv")
        slopes = inputs.get("alibi_slopes")
        slopes = None if slopes is None else slopes[b, heads, None, None]
        of = (b, torch.arange(w.heads, device=device)[heads, None, None])
        scores = changed_scores((q @ k.T) * w.scale, w, slopes, of=of)
        if hidden is not None:
            scores = scores.masked_fill(hidden, -math.inf)
        if "sink" in inputs:
            sink = inputs["sink"][heads, None, None].to(scores.dtype)
            scores = torch.cat((scores, sink.expand(*scores.shape[:-1], 1)), -1)
        weights = torch.softmax(scores, -1)[..., : w.seq_len_kv]
        if hidden is not None:
            weights = weights.masked_fill(hidden, 0)  # a row without keys is NaN
        out[b, :, heads] = (weights @ v).transpose(0, 1)
        lse[b, heads] = torch.logsumexp(scores.double(), -1)
    return out, lse


def check(case: Case, kernel: KernelCall, device: str = "cuda") -> list[str]:
    """What is wrong with the kernel's results on a case, in words; a NaN among them is wrong."""
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
    criterion = fault(judge(CheckCase(w), expected(w, inputs), outputs))
    found = {
        f"error {error:.3g} exceeds {limit:.3g}": error <= limit,
        criterion: not criterion,
        "two launches differ": equal_bits(first, second),
        "it wrote beside O": out.is_clean_outside(),
        "rows that see nothing are not 0": bool((first.transpose(1, 2)[blind] == 0).all()),
        "it wrote beside the log-sum-exp": lse.is_clean_outside(),
    }
    if w.lse:
        found |= judged_lse(first_lse, second_lse, exact_lse)
    return [f"{case.name}: {what}" for what, fine in found.items() if not fine]


def judged_lse(lse: torch.Tensor, again: torch.Tensor, exact: torch.Tensor) -> dict[str, bool]:
    """What could be wrong with the log-sum-exp of two launches, in words, and whether it is
    fine."""
    seen = exact != -math.inf
    off = largest((lse[seen].double() - exact[seen]) / (1 + exact[seen].abs()))
    return {
        f"log-sum-exp is off by {off:.3g}": off <= LSE_TOLERANCE,
        "log-sum-exp of empty rows is not -inf": bool((lse[~seen] == -math.inf).all()),
        "two log-sum-exps differ": equal_bits(lse, again),
    }


def largest(difference: torch.Tensor) -> float:
    """The largest absolute value; NaN if there is one; 0 for nothing."""
    return float(difference.abs().max()) if difference.numel() else 0.0


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as whole numbers."""
    return tensor.view(torch.int16 if tensor.element_size() == 2 else torch.int32)


def equal_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bitwise equality, under which NaN is equal to itself."""
    return torch.equal(bits(a.contiguous()), bits(b.contiguous()))


def same_bits(one: Iterable[torch.Tensor], other: Iterable[torch.Tensor]) -> bool:
    """Bitwise equality of several."""
    return all(equal_bits(a, b) for a, b in zip(one, other, strict=True))
