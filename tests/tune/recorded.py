"""Recordings to replay, made up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fa_tune.build.compile import kernel_source_sha256
from fa_tune.core.model import Attempt, DeviceInfo, Measurement, Outcome
from fa_tune.core.workload import DType, Workload
from fa_tune.core.workload import benchmark_workload as benchmark
from fa_tune.store import recordings
from fa_tune.store.recordings import Meta
from tests.store.test_recordings import ORIGIN
from tests.tune.fakes import H200

WORKLOAD = benchmark(1024, 128, DType.FP16)
OLD, NEW = "2026-01-01T00:00:00+00:00", "2026-03-01T00:00:00+00:00"


def record(
    folder: Path,
    name: str,
    method: str,
    date: str,
    times: Mapping[str, float],
    *,
    device: DeviceInfo = H200,
    inputs: str = "normal",
    ours: bool = False,
    workloads: Sequence[Workload] = (WORKLOAD,),
) -> None:
    """A recording of the subjects' `times` on each of `workloads`; `ours`: of these kernels."""
    origin = replace(
        ORIGIN,
        gpu=device.name,
        driver=device.driver,
        method=method,
        profiler_version="2025.3.1" if method == "ncu" else "",
        kernel_source_sha256=kernel_source_sha256("sm80") if ours else "0" * 64,
        recorded_at=date,
    )
    attempts = [
        Attempt(s, w.key, Outcome.OK, "", Measurement(s, w.key, method, (t,)))
        for w in workloads
        for s, t in times.items()
    ]
    meta = Meta(recordings.SCHEMA, device, origin, inputs=inputs)
    recordings.save(folder / device.slug / f"{name}.csv", attempts, {}, meta)
