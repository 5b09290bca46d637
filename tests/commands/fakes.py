"""Results that the pipeline could return, without a GPU or a compiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fa_tune.build.compile import BuildRequest, BuildResult
from fa_tune.commands.shared.progress import PlainProgress
from fa_tune.core.model import (
    Artifact,
    Attempt,
    CaseError,
    DeviceInfo,
    Measurement,
    Outcome,
    Quantity,
    Rejected,
    Resources,
    Variant,
    Verdict,
)
from fa_tune.core.options import SearchOptions
from fa_tune.core.workload import DType, Workload, benchmark_workload
from fa_tune.search.decide import decide
from fa_tune.tune.results import (
    BuildReport,
    ProfileResult,
    SearchResult,
    VerifyReport,
    WorkloadResult,
)

FAST = "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax"
SLOW = "(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles"
BROKEN = "(FP16, 128, 128, 64, 4): async+swizzled+load_2_2_2_tiles"
WHOSE = "recorded on NVIDIA H200 on 2026-01-02 with ncu, replayed from nvidia_h200/tune.csv"
H200 = DeviceInfo("NVIDIA H200", (9, 0), "580.1")
MS = 1e-3


class Stub:
    """In a function's place: keeps what it is called with, says whose its result is, returns it."""

    def __init__(self, result: Any) -> None:
        self.result = result
        self.calls: list[tuple[Any, ...]] = []  # by position
        self.named: list[dict[str, Any]] = []

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.calls.append(arguments)
        self.named.append(named)
        for watcher in arguments:
            if isinstance(watcher, PlainProgress) and hasattr(self.result, "source"):
                watcher.note(self.result.source)
        return self.result

    @property
    def options(self) -> list[SearchOptions]:
        """Those of each call."""
        return [a for call in self.calls for a in call if isinstance(a, SearchOptions)]


Put = Callable[[str, Any], Stub]  # the fixture `stub`


def key(config: str) -> str:
    return Variant("sm80", config).key


def workload(seq_len: int = 4096) -> Workload:
    return benchmark_workload(seq_len, 128, DType.FP16)


def attempt(
    subject: str,
    times_ms: Sequence[float],
    w: Workload | None = None,
    *,
    method: str = "ncu",
    counters: dict[str, Quantity] | None = None,
) -> Attempt:
    w = w or workload()
    samples = tuple(t * MS for t in times_ms)
    measurement = Measurement(subject, w.key, method, samples, counters or {})
    return Attempt(subject, w.key, Outcome.OK, "", measurement)


def failed(subject: str, outcome: Outcome, reason: str, w: Workload | None = None) -> Attempt:
    return Attempt(subject, (w or workload()).key, outcome, reason)


def attempts(w: Workload | None = None) -> tuple[Attempt, ...]:
    """Two of ours (5.0 and 9.0 ms), a failed one, and both references (6.0 and 4.0 ms)."""
    return (
        attempt(key(FAST), (5.0, 5.1, 4.9), w),
        attempt(key(SLOW), (9.0, 9.1, 8.9), w),
        failed(key(BROKEN), Outcome.CRASHED, "the GPU reported\nan illegal address", w),
        attempt("ref:fa2", (6.0, 6.1, 5.9), w),
        attempt("ref:cudnn", (4.0, 4.1, 3.9), w),
    )


def resources(registers: int = 200) -> Resources:
    return Resources(registers, 0, 0, 0, 1024, 48128, 128, 2)


def workload_result(seq_len: int = 4096) -> WorkloadResult:
    w = workload(seq_len)
    found = attempts(w)
    measured = [a.measurement for a in found if a.measurement is not None]
    return WorkloadResult(w, found, decide(measured, key(SLOW)))


def search_result(
    results: Sequence[WorkloadResult] | None = None, registry: Path | None = None
) -> SearchResult:
    return SearchResult(
        results=tuple(results if results is not None else [workload_result()]),
        rejected=((Variant("sm80", BROKEN), Rejected("smem_fits", "needs 246 KiB")),),
        resources={key(FAST): resources(), key(SLOW): resources(255)},
        source=WHOSE,
        method="ncu",
        registry=registry or Path("kept/registry.json"),
        device=H200,
        reused=2,
        measured=3,
    )


def profile_result(found: Sequence[Attempt] | None = None) -> ProfileResult:
    return ProfileResult(tuple(found or attempts()), {key(FAST): resources()}, WHOSE, None)


def verdict(error: float = 1e-3, limit: float = 2e-3) -> Verdict:
    ok = error <= limit
    case = CaseError(workload().key, error, limit / 2, limit, ok)
    return Verdict(ok, (case,), "" if ok else "1 of 1 cases is beyond its limit")


def verify_report(**verdicts: Verdict) -> VerifyReport:
    named = verdicts or {key(FAST): verdict()}
    return VerifyReport(named, (), ())


def build_result(config: str, *, ok: bool = True, cached: bool = False) -> BuildResult:
    variant = Variant("sm80", config)
    request = BuildRequest(variant, "", "sm_90")
    if not ok:
        reason = "static assertion failed:\nB_r must be a multiple"
        return BuildResult(request, Outcome.COMPILE_FAILED, None, reason, cached)
    artifact = Artifact(variant, "", "sm_90", "x.cubin", "k", resources(), ("a warning",), 1.25)
    return BuildResult(request, Outcome.OK, artifact, "", cached)


def build_report(*results: BuildResult) -> BuildReport:
    rejected = ((Variant("sm80", BROKEN), Rejected("smem_fits", "needs 246 KiB")),)
    return BuildReport("sm_90", "13.0.88", results, rejected)
