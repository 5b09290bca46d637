"""What tells boards apart: verification, and in the same process two kernels timed in turn.

A worker's start is dearer than the few samples, so a board that verifies kernels anyway times the
calibration pair at the end of that.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from fa_tune.core.model import Workload
from fa_tune.gpu import telemetry as rounds
from fa_tune.gpu.jobs import time_events as timed
from fa_tune.gpu.jobs import verify
from fa_tune.gpu.kernels import guarded, launcher, lse_for, use_device
from fa_tune.gpu.reference import make_inputs
from fa_tune.workers.main import Report

CALIBRATION = "calibration"  # the item that is no kernel to verify
ROUNDS = 21
SETTLE_S = 1.0
TIMEOUT_S = 120.0


def handle(shared: Mapping[str, Any], items: Mapping[str, Any], report: Report) -> None:
    """`shared`: device, seed.  Items: those of `verify.handle`; `calibration` besides, with
    `workload` (key) and `pair`: two of subject, cubin and symbol.  Its value: samples_s of
    both, round by round (the first's are means of the samples right before and right after the
    second's), sm_clock_hz and power_w (None where NVML does not tell)."""
    kernels = {name: item for name, item in items.items() if name != CALIBRATION}
    if kernels:
        verify.handle(shared, kernels, report)
    if CALIBRATION in items:
        report.begin(CALIBRATION, timeout_s=TIMEOUT_S)
        use_device(int(shared["device"]))
        found = guarded(report, CALIBRATION, partial(_time_pair, items[CALIBRATION], shared))
        if found is not None:
            report.done(CALIBRATION, found)


def _time_pair(item: Mapping[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
    workload = Workload.from_key(item["workload"])
    seed = int(shared["seed"])
    inputs = [make_inputs(workload, seed=seed + i) for i in range(timed.input_sets(workload))]
    out, lse = torch.empty_like(inputs[0].q), lse_for(workload)
    read = rounds.reader(int(shared["device"]))
    first, second = (
        timed.Subject([launcher(one, workload, i, out, lse) for i in inputs], [])
        for one in item["pair"]
    )
    for subject in (first, second):
        subject.prepare()
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
    return {
        "samples_s": [first.samples, second.samples],
        "sm_clock_hz": statistics.median(clocks) if clocks else None,
        "power_w": statistics.median(powers) if powers else None,
    }
