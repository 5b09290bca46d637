"""Recordings to replay, made up."""

from __future__ import annotations

from pathlib import Path

from fa_tune.core.model import Attempt, Measurement, Outcome, Provenance
from fa_tune.core.workload import DType
from fa_tune.core.workload import benchmark_workload as benchmark
from fa_tune.store import recordings
from fa_tune.store.recordings import Meta
from tests.tune.fakes import H200

WORKLOAD = benchmark(1024, 128, DType.FP16)


def record(folder: Path, name: str, method: str, date: str, times: dict[str, float]) -> None:
    origin = Provenance(
        gpu=H200.name,
        driver=H200.driver,
        cuda="13.0",
        nvrtc="13.0.88",
        method=method,
        profiler_version="2025.3.1" if method == "ncu" else "",
        profiler_args=("--page", "raw"),
        clock_policy="none",
        cache_policy="flush all",
        kernel_source_sha256="0" * 64,
        recorded_at=date,
        fa_tune_version="0.1.0",
    )
    attempts = [
        Attempt(s, WORKLOAD.key, Outcome.OK, "", Measurement(s, WORKLOAD.key, method, (t,)))
        for s, t in times.items()
    ]
    path = folder / H200.slug / f"{name}.csv"
    recordings.save(path, attempts, {}, Meta(recordings.SCHEMA, H200, origin))
