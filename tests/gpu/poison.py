"""NaN and infinity in one element of Q, K or V: who must show it, who must not.

Whoever attends to the element shows what attention in fp64 shows (a score of +inf makes the row
NaN, one of −inf counts nothing).  Whoever does not is as without it, but for one case, which
FlashAttention has as well: a hidden key's weight is 0, and 0 times a NaN or infinity in V is
NaN.  That may reach the rows of a tile of queries that has to compute the key's tile, in the
element's own column; FlashAttention 2, where it is at hand, sets the limit.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping

import torch

from fa_tune.core.model import Variant
from fa_tune.core.workload import Workload
from fa_tune.operations.base import Tensors
from fa_tune.operations.forward.torch_side.scores import hidden_pairs
from tests.gpu.oracle import LSE_TOLERANCE, KernelCall, attention, inputs_for
from tests.tensors import qkv

BATCH, HEADS, KV_HEADS = 2, 4, 2
COLUMN = 5  # of d_head, where the element is
INF = math.inf

# What is put where: tensor and value.  `inf_q` and `inf_k` meet factors of both signs.
KINDS: Mapping[str, tuple[str, float]] = {
    "nan_q": ("q", math.nan),
    "inf_q": ("q", INF),
    "nan_k": ("k", math.nan),
    "inf_k": ("k", INF),
    "nan_v": ("v", math.nan),
    "inf_v": ("v", INF),
    "minus_inf_v": ("v", -INF),
}
ALL_MINUS_INF = "all_minus_inf"  # a row whose every score is −inf


@dataclasses.dataclass(frozen=True)
class Problem:
    """A workload for one variant, whose blocks say what a tile of queries computes."""

    variant: Variant
    workload: Workload
    blocks: tuple[int, int]


def problem(
    variant: Variant, workload: Workload, blocks: tuple[int, int], *, mask: str, ragged: bool
) -> Problem:
    """One with a few blocks on either side; `workload` gives d_head, type and soft cap."""
    b_r, b_c = blocks
    q, kv = (2 * b_r + 17, 3 * b_c + 5) if ragged else (2 * b_r, 4 * b_c)
    kv = q if mask == "causal" else kv
    shape = (BATCH, HEADS, KV_HEADS, q, kv, workload.d_head, workload.dtype)
    wanted = Workload(*shape, causal=mask != "full", bottom_right=mask == "causal_br", lse=True)
    return Problem(variant, dataclasses.replace(wanted, softcap=workload.softcap), blocks)


Library = Callable[[Workload, Tensors], torch.Tensor]  # [batch, seq, heads, d_head]


def check(one: Problem, kernel: KernelCall, library: Library | None, device: str) -> list[str]:
    """Everything that is wrong, in words; nothing if all is well."""
    wrong = []
    for kind, place in _places(one):
        found = _check_place(one, kind, place, kernel, library, device)
        wrong += [f"{one.variant.key} {one.workload.key} {kind} at {place}: {w}" for w in found]
    return wrong


def _places(one: Problem) -> Iterator[tuple[str, int]]:
    """Kinds with rows of Q or of K and V: the ends, and both sides of a tile's edge.  A row of
    which all scores are to be −inf is one that sees a key, and there is none with a soft cap."""
    b_r, b_c = one.blocks
    w = one.workload
    for kind in (*KINDS, *([ALL_MINUS_INF] if w.softcap is None else [])):
        of_q = kind == ALL_MINUS_INF or KINDS[kind][0] == "q"
        n, block = (w.seq_len_q, b_r) if of_q else (w.seq_len_kv, b_c)
        for place in sorted({0, block - 1, block, n - 1}):
            blind = kind == ALL_MINUS_INF and w.causal and place + w.diagonal < 0
            if place < n and not blind:
                yield kind, place


def _check_place(
    one: Problem, kind: str, place: int, kernel: KernelCall, library: Library | None, device: str
) -> list[str]:
    w = one.workload
    clean = inputs_for(w, "plain", 11, device)
    inputs = qkv(clean["q"].clone(), clean["k"].clone(), clean["v"].clone())
    batch, kv_head = BATCH - 1, KV_HEADS - 1
    group = HEADS // KV_HEADS
    head = kv_head * group
    if kind == ALL_MINUS_INF:
        inputs["q"][batch, place, head, COLUMN] = -INF
        inputs["k"][batch, :, kv_head, COLUMN].abs_().add_(1)
    else:
        name, value = KINDS[kind]
        of_head = head if name == "q" else kv_head
        inputs[name][batch, place, of_head, COLUMN] = value
    out = torch.full_like(inputs["q"], 77.0)
    lse = torch.full((w.batch, w.heads, w.seq_len_q), 77.0, device=device)
    kernel(w, inputs, out, lse)

    of_v = kind in KINDS and KINDS[kind][0] == "v"
    # V's element is put into the expected result by hand: hidden keys are not there at all.
    known = {**inputs, "v": clean["v"]} if of_v else inputs
    exact, exact_lse = attention(known, w, torch.float64)
    same, _ = attention(known, w, inputs["q"].dtype)
    may_leak = torch.zeros_like(out, dtype=torch.bool)
    unseen = torch.zeros_like(out, dtype=torch.bool)
    heads = slice(head, head + group)
    if of_v:
        sees = _sees(w, device)[:, place]
        exact[batch, sees, heads, COLUMN] = KINDS[kind][1]
        computes = _computes(one, place, device) & ~sees
        may_leak[batch, computes, heads, COLUMN] = True
        unseen[batch, ~sees, heads, COLUMN] = True
    # Where all that a row sees has score −inf, torch's own back ends disagree: 0 or NaN.
    either = ((exact_lse == -INF) & _sees(w, device).any(-1)).transpose(1, 2)[..., None]
    either = either.expand_as(out)
    if kind == ALL_MINUS_INF and not bool(either[batch, place, head].all()):
        raise AssertionError("the row was to have no score but -inf")

    theirs = library(w, inputs) if library is not None else None
    wrong = list(_compare(w, out, exact, same, may_leak | either))
    if not bool((out[either].isnan() | (out[either] == 0)).all()):
        wrong.append("a row whose scores are all -inf is neither 0 nor NaN")
    if theirs is not None:
        wrong += _compare_to_library(out, theirs, unseen, either)
    return wrong + list(_compare_lse(lse, exact_lse, either))


def _compare(
    w: Workload,
    out: torch.Tensor,
    exact: torch.Tensor,
    same: torch.Tensor,
    passed_over: torch.Tensor,
) -> Iterator[str]:
    for name, test in (("NaN", torch.isnan), ("+inf", torch.isposinf), ("-inf", torch.isneginf)):
        if n := int((test(out) != test(exact))[~passed_over].sum()):
            yield f"{n} elements are {name} where the reference is not, or the other way round"
    finite = ~passed_over & out.isfinite() & exact.isfinite() & same.isfinite()
    error = (out.double() - exact)[finite].abs().max()
    limit = 2 * (same.double() - exact)[finite].abs().max() + w.dtype.element.epsilon
    if not error <= limit:
        yield f"error {float(error):.3g} of the rest exceeds {float(limit):.3g}"


def _compare_to_library(
    out: torch.Tensor, theirs: torch.Tensor, unseen: torch.Tensor, either: torch.Tensor
) -> Iterator[str]:
    """`unseen`: elements whose row does not see the NaN or infinity in their column of V."""
    if n := int((unseen & ~out.isfinite() & theirs.isfinite()).sum()):
        yield f"hidden keys show in {n} elements where they do not in FlashAttention 2"
    for name, test in (("NaN", torch.isnan), ("infinite", torch.isinf)):
        if n := int((test(out) != test(theirs))[~(unseen | either)].sum()):
            yield f"{n} elements are {name} where FlashAttention 2 is not, or vice versa"


def _compare_lse(lse: torch.Tensor, exact: torch.Tensor, either: torch.Tensor) -> Iterator[str]:
    either_rows = either.any(-1).transpose(1, 2)
    finite = exact.isfinite()
    allowed = LSE_TOLERANCE * (1 + exact[finite].abs())
    if not bool(((lse[finite].double() - exact[finite]).abs() <= allowed).all()):
        yield "log-sum-exp of finite rows is off"
    empty = (exact == -INF) & ~either_rows
    if not bool((lse[empty] == -INF).all()):
        yield "log-sum-exp of rows that see nothing is not -inf"
    if bool(lse[~finite & ~empty].isfinite().any()):
        yield "log-sum-exp is finite in rows that are not"


def _sees(w: Workload, device: str) -> torch.Tensor:
    """Which queries see which keys, bool [seq_len_q, seq_len_kv]."""
    hidden = hidden_pairs(w, torch.device(device))
    if hidden is None:
        return torch.ones(w.seq_len_q, w.seq_len_kv, dtype=torch.bool, device=device)
    return ~hidden


def _computes(one: Problem, key: int, device: str) -> torch.Tensor:
    """Which queries share a tile with one that sees a key of this key's tile."""
    w, (b_r, b_c) = one.workload, one.blocks
    if not w.causal:
        return torch.ones(w.seq_len_q, dtype=torch.bool, device=device)
    rows = torch.arange(w.seq_len_q, device=device)
    last = ((rows // b_r + 1) * b_r).clamp(max=w.seq_len_q) - 1
    return last + w.diagonal >= key // b_c * b_c
