"""What tells GPUs apart: verification, and in the same process two kernels timed in turn.

A worker's start costs more than the few samples, so a GPU that verifies kernels anyway times the
calibration pair at the end of that.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from fa_tune.core.jobs import (
    CALIBRATION,
    CalibrateJob,
    PairItem,
    PairTimes,
    VerifyItem,
    to_json,
)
from fa_tune.core.workload import Workload
from fa_tune.gpu import telemetry
from fa_tune.gpu.jobs import time_events, verify
from fa_tune.gpu.kernels import Problem, guarded, launchers, use_device
from fa_tune.workers.main import Report

ROUNDS = 21
SETTLE_S = 1.0
TIMEOUT_S = 120.0


def handle(shared: Mapping[str, Any], items: Mapping[str, Any], report: Report) -> None:
    """See `core.jobs.CalibrateJob`."""
    job = CalibrateJob.read(shared, items)
    kernels = {name: item for name, item in job.items.items() if isinstance(item, VerifyItem)}
    if kernels:
        verify.verify_items(
            *(job.device, kernels, job.seed, report),
            item_timeout_s=job.item_timeout_s,
            thorough=job.thorough,
            inputs=job.verify_inputs,
        )
    pair = job.items.get(CALIBRATION)
    if isinstance(pair, PairItem):
        report.begin(CALIBRATION, timeout_s=TIMEOUT_S)
        use_device(job.device)
        found = guarded(report, CALIBRATION, partial(_time_pair, pair, job))
        if found is not None:
            report.done(CALIBRATION, to_json(found))


def _time_pair(item: PairItem, job: CalibrateJob) -> PairTimes:
    workload = Workload.from_key(item.workload)
    inputs = time_events.input_sets_of(workload, job.inputs, job.seed)
    problem = Problem.of(workload, inputs)
    read = telemetry.reader(job.device)
    first, second = (time_events.Subject(launchers(kernel, problem), []) for kernel in item.pair)
    time_events.prepare_alike(first, second)
    # Warm by its own load: after any other, clocks would still be on their way.
    settled = time.monotonic() + SETTLE_S
    while time.monotonic() < settled:
        first.sample(), second.sample()
    readings = [read()]
    before = first.sample()
    for _ in range(ROUNDS):
        beside, after = second.sample(), first.sample()
        first.samples.append((before + after) / 2)
        second.samples.append(beside)
        before = after
    readings.append(read())
    clocks = [r.sm_clock_hz for r in readings if r.sm_clock_hz is not None]
    powers = [r.power_w for r in readings if r.power_w is not None]
    return PairTimes(
        (tuple(first.samples), tuple(second.samples)),
        sm_clock_hz=statistics.median(clocks) if clocks else None,
        power_w=statistics.median(powers) if powers else None,
    )
