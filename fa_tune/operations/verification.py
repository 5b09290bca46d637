"""Error figures → verdict.  Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fa_tune import operations
from fa_tune.core.model import CaseError, Verdict
from fa_tune.operations.base import NORMAL, CheckCase, Figures


def case_error(case: CheckCase, errors: Figures, reference: Figures, output: Figures) -> CaseError:
    """Judge one case by the kernel's errors, those of the same-precision reference and the size of
    the output.  A NaN (an output never written, or a real NaN) is never ok."""
    workload = case.workload
    limits = operations.get(workload.op).error_limits(reference, output, workload.dtype)
    return CaseError(
        workload=workload.key,
        max_abs_error=errors.largest,
        reference_max_abs_error=reference.largest,
        limit=limits.largest,
        # False for a NaN.
        ok=errors.largest <= limits.largest and errors.rms <= limits.rms,
        rms_error=errors.rms,
        reference_rms_error=reference.rms,
        rms_limit=limits.rms,
        inputs=case.inputs,
    )


def fault(case: CaseError) -> str:
    """What is wrong with a case, in words; empty if it is right."""
    if case.ok:
        return ""
    if math.isnan(case.max_abs_error):
        return "parts of the output were not written or are NaN"
    if not case.max_abs_error <= case.limit or case.rms_error is None or case.rms_limit is None:
        return f"error {case.max_abs_error:.3g} exceeds {case.limit:.3g}"
    return f"root mean square error {case.rms_error:.3g} exceeds {case.rms_limit:.3g}"


def verdict(cases: Sequence[CaseError]) -> Verdict:
    """Correct when every case is; the reason names the first that is not."""
    for case in cases:
        if not case.ok:
            inputs = "" if case.inputs == NORMAL else f" ({case.inputs})"
            return Verdict(False, tuple(cases), f"{case.workload}{inputs}: {fault(case)}")
    return Verdict(bool(cases), tuple(cases), "" if cases else "no case was run")
