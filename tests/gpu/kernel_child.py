"""One kernel on awkward problems in a worker, against attention written down once more.

Q, K, V and O are cut out of larger tensors, so that no stride is the natural one and a write
next to O shows.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from fa_tune import families
from fa_tune.core.model import Variant
from fa_tune.core.workload import DType, Workload
from fa_tune.gpu.launch import Kernel
from fa_tune.operations.traits import Traits
from fa_tune.workers.main import Report
from tests.gpu.items import check_kernels, launch_args
from tests.gpu.oracle import grown
from tests.tensors import qkv

FLOOR = {DType.FP16: 2.0**-10, DType.BF16: 2.0**-7}  # one rounding of an output near 1
LSE_GUARD = 64  # elements behind the log-sum-exp that must stay as they were


@dataclasses.dataclass(frozen=True)
class Case:
    """`diagonal`: a causal query i sees key j when j ≤ i + diagonal; None without a mask.
    `growth`: see tests/gpu/cases.py."""

    seq_len_q: int
    seq_len_kv: int
    batch: int
    heads: int
    kv_heads: int
    diagonal: int | None
    scale: float | None = None  # None: 1 / sqrt(d_head)
    spread: float = 1.0  # of the inputs
    growth: float | None = None


def cases(block: int, traits: Traits) -> Iterator[Case]:
    """`block`: whole blocks of queries and of keys."""
    lengths = [(block, block), (2 * block, 3 * block), (3 * block, 2 * block)]
    if traits.ragged:
        lengths += [(1, 1), (1, 257), (113, 203), (300, 37), (257, 1023)]
    heads = ((2, 3, 3), (1, 6, 2), (3, 5, 1), (1, 1, 1), (2, 12, 4))
    for number, (q, kv) in enumerate(lengths):
        batch, n_heads, kv_heads = heads[number % len(heads)]
        # Top-left, bottom-right, slightly off, no key for anybody, every key for everybody.
        diagonals = {0, kv - q, 5, -q, kv} if traits.causal else {None}
        for diagonal in sorted(diagonals, key=str):
            yield Case(q, kv, batch, n_heads, kv_heads, diagonal)
    diagonal = 0 if traits.causal else None
    yield Case(2 * block, 2 * block, 1, 2, 2, diagonal, scale=0.3)
    yield Case(2 * block, 2 * block, 1, 2, 2, diagonal, spread=6.0)
    yield Case(2 * block, 5 * block, 1, 4, 2, diagonal, growth=10.0)


def handle(shared: Mapping[str, Any], items: Mapping[str, Any], report: Report) -> None:
    """Items: subject, traits, cubin, symbol.  Value: a list of one dict of figures per case."""
    check_kernels(shared, items, report, check_all)


def check_all(kernel: Kernel, item: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The figures of every case."""
    variant = Variant.from_key(item["subject"])
    family = families.get(variant.family)
    config = family.parse(variant.config)
    traits = Traits.parse(item["traits"])
    block = math.lcm(*families.blocks(config))
    return [
        check(kernel, config.dtype, config.d_head, case, traits, seed)
        for seed, case in enumerate(cases(block, traits))
    ]


def check(
    kernel: Kernel, dtype: DType, d_head: int, case: Case, traits: Traits, seed: int
) -> dict[str, Any]:
    """Two launches of one problem, and everything that can be said of their results."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    element = dtype.to_torch_dtype()

    def draw(seq_len: int, heads: int) -> torch.Tensor:
        shape = (case.batch + 1, seq_len + 3, heads + 2, d_head)
        whole = torch.randn(shape, generator=generator, device="cuda") * case.spread + 0.25
        return inside(whole.to(element))

    q = draw(case.seq_len_q, case.heads)
    k, v = draw(case.seq_len_kv, case.kv_heads), draw(case.seq_len_kv, case.kv_heads)
    n_rows = case.batch * case.heads * case.seq_len_q
    grown(k, case.growth)
    whole_shape = (case.batch + 1, case.seq_len_q + 3, case.heads + 2, d_head)
    whole_out = torch.empty(whole_shape, dtype=element, device="cuda")
    whole_lse = torch.empty(n_rows + LSE_GUARD, device="cuda")
    out = inside(whole_out)
    lse = whole_lse[:n_rows].view(case.batch, case.heads, case.seq_len_q)
    workload = Workload(
        case.batch, case.heads, case.kv_heads, case.seq_len_q, case.seq_len_kv, d_head, dtype,
        traits.causal,
    )  # fmt: skip
    args = dataclasses.replace(
        launch_args(qkv(q, k, v), out, lse if traits.lse else None),
        diagonal=case.diagonal or 0,
        softmax_scale=case.scale,
    )

    def launch() -> tuple[torch.Tensor, torch.Tensor]:
        whole_out.fill_(float("nan"))
        whole_lse.fill_(float("nan"))
        kernel.launch(workload, args, torch.cuda.current_stream().cuda_stream)
        torch.cuda.synchronize()
        return out.clone(), lse.clone()

    first, first_lse = launch()
    second, second_lse = launch()
    scale = 1 / math.sqrt(d_head) if case.scale is None else case.scale
    exact, exact_lse = attention(q.double(), k.double(), v.double(), case.diagonal, scale)
    same, _ = attention(q, k, v, case.diagonal, scale)
    empty = exact_lse == -math.inf
    figures: dict[str, Any] = {
        "case": dataclasses.asdict(case),
        "error": largest(first.double() - exact),
        "limit": 2 * largest(same.double() - exact) + FLOOR[dtype],
        "repeats": torch.equal(first.view(torch.int16), second.view(torch.int16)),
        "stays_inside": n_nan(whole_out) == whole_out.numel() - out.numel(),
        "n_empty": int(empty.sum()),
        "empty_rows_are_zero": bool((first.transpose(1, 2)[empty] == 0).all()),
    }
    if traits.lse:
        figures |= {
            "lse_error": largest(first_lse[~empty].double() - exact_lse[~empty]),
            "lse_of_empty_rows": bool((first_lse[empty] == -math.inf).all()),
            "lse_repeats": torch.equal(first_lse, second_lse),
        }
    figures["lse_stays_inside"] = n_nan(whole_lse) == (
        LSE_GUARD if traits.lse else whole_lse.numel()
    )
    return figures


def inside(whole: torch.Tensor) -> torch.Tensor:
    """All but the rim, which is different on every side."""
    return whole[1:, 2:-1, 1:-1]


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, diagonal: int | None, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """softmax(scale Q Kᵀ) V in the tensors' own precision, [batch, seq, heads, d_head], and the
    log-sum-exp [batch, heads, seq_len_q] in fp64."""
    group = q.shape[2] // k.shape[2]
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    k, v = (t.repeat_interleave(group, dim=1) for t in (k, v))
    scores = (q @ k.transpose(-1, -2)) * scale
    if diagonal is not None:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril(diagonal)
        scores = scores.masked_fill(~seen, -math.inf)
    weights = torch.softmax(scores, -1).nan_to_num(0.0)  # a row without keys is NaN
    return (weights @ v).transpose(1, 2), torch.logsumexp(scores.double(), -1)


def largest(difference: torch.Tensor) -> float:
    """The largest absolute value; NaN if there is one; 0 for nothing."""
    return float(difference.abs().max()) if difference.numel() else 0.0


def n_nan(tensor: torch.Tensor) -> int:
    return int(tensor.isnan().sum())
