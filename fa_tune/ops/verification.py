"""Error figures → verdict.  Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fa_tune import ops
from fa_tune.core.model import CaseError, Verdict
from fa_tune.core.workload import Workload


def case_error(
    workload: Workload, max_abs_error: float, reference_max_abs_error: float
) -> CaseError:
    """Judge one case.  A NaN error (an output never written, or a real NaN) is never ok."""
    limit = ops.get(workload.op).error_limit(reference_max_abs_error, workload.dtype)
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


def verdict_to_json(value: Verdict) -> dict[str, Any]:
    """Plain data of a verdict."""
    return asdict(value)


def verdict_from_json(value: Mapping[str, Any]) -> Verdict:
    """A verdict from `verdict_to_json`'s data."""
    cases = tuple(CaseError(**case) for case in value["cases"])
    return Verdict(bool(value["correct"]), cases, str(value["reason"]))
