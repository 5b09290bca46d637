"""What a kernel is checked on, and error figures → verdict.  Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fa_tune.core.model import CaseError, DType, Verdict, Workload
from fa_tune.ops.traits import Traits

# What the criterion allows beyond twice the reference's own error: one rounding of an output
# near 1, which a reference that happens to be exact would not grant.
FLOOR = {DType.FP16: 2.0**-10, DType.BF16: 2.0**-7}


def error_limit(reference_max_abs_error: float, dtype: DType) -> float:
    """Twice the same-precision reference's error against fp32, plus the floor of the dtype."""
    return 2 * reference_max_abs_error + FLOOR[dtype]


def case_error(
    workload: Workload, max_abs_error: float, reference_max_abs_error: float
) -> CaseError:
    """Judge one case.  A NaN error (an output never written, or a real NaN) is never ok."""
    limit = error_limit(reference_max_abs_error, workload.dtype)
    return CaseError(
        workload=workload.key,
        max_abs_error=max_abs_error,
        reference_max_abs_error=reference_max_abs_error,
        limit=limit,
        ok=not math.isnan(max_abs_error) and max_abs_error <= limit,
    )


def verdict(cases: Sequence[CaseError]) -> Verdict:
    """Correct when every case is; the reason names the first that is not."""
    for case in cases:
        if not case.ok:
            figure = (
                "parts of the output were not written or are NaN"
                if math.isnan(case.max_abs_error)
                else f"error {case.max_abs_error:.3g} exceeds {case.limit:.3g}"
            )
            return Verdict(False, tuple(cases), f"{case.workload}: {figure}")
    return Verdict(bool(cases), tuple(cases), "" if cases else "no case was run")


def verification_workloads(
    blocks: tuple[int, int], d_head: int, dtype: DType, traits: str
) -> tuple[Workload, ...]:
    """Shapes for a kernel with these traits: head counts that are no power of two, grouped
    heads, unequal lengths, from one block to several, and a softmax scale that is not the
    usual one.  Without the ragged trait lengths are whole blocks; with it they are odd, down
    to 1.  With a mask, unequal lengths come in both alignments."""
    block = math.lcm(*blocks)
    facts = Traits.parse(traits)
    lengths = [(block, block), (3 * block, 2 * block), (2 * block, 5 * block)]
    if facts.ragged:
        lengths = [(1, 1), (113, 203), (3 * block + 1, block - 1), (257, 1023)]
    shapes = [(2, 3, 3), (1, 6, 2), (3, 5, 1), (2, 4, 4)]
    scales = (None, None, 1.5 / math.sqrt(d_head), None)
    found = [
        Workload(
            *(batch, heads, kv_heads, q, kv, d_head, dtype),
            causal=facts.causal,
            bottom_right=bottom_right,
            lse=facts.lse,
            softmax_scale=scale,
        )
        for (q, kv), (batch, heads, kv_heads), scale in zip(lengths, shapes, scales, strict=False)
        for bottom_right in ((False, True) if facts.causal else (False,))
    ]
    return tuple(dict.fromkeys(found))


def verdict_to_json(value: Verdict) -> dict[str, Any]:
    """Plain data of a verdict."""
    return asdict(value)


def verdict_from_json(value: Mapping[str, Any]) -> Verdict:
    """A verdict from `verdict_to_json`'s data."""
    cases = tuple(CaseError(**case) for case in value["cases"])
    return Verdict(bool(value["correct"]), cases, str(value["reason"]))
