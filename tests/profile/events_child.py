"""What `fa_tune.gpu.jobs.time_events` reports, without a GPU.

A variant's `cubin` is JSON: `samples_s`, and `do` for what goes wrong after the first sample.
Samples that an earlier worker has reported are not taken again.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import Any

from fa_tune.workers.main import Report

REFERENCE_S = [9e-3, 9.5e-3]
HANG_S = 3600
VALUE: dict[str, Any] = {  # of an item, beside its samples
    "sm_clock_hz": None,
    "host_s": 2.5e-5,
    "sets": 3,
    "launches_per_sample": 1,
    "relative": [],
    "stop_reason": "the order was decided",
    "flagged": {},
    "rounds": [],
}


def handle(shared: Mapping[str, Any], items: Mapping[str, Any], report: Report) -> None:
    behaviours: dict[str, dict[str, Any]] = {
        name: json.loads(item["cubin"]) if item["cubin"] else {"samples_s": REFERENCE_S}
        for name, item in items.items()
    }
    taken = {name: list(item["_partials"]) for name, item in items.items()}
    for round_ in range(int(shared["runs"])):
        for name, behaviour in behaviours.items():
            if len(taken[name]) > round_:
                continue
            report.begin(name)
            if round_ == 1:
                _strike(name, behaviour.get("do", ""), report)
            sample_s = behaviour["samples_s"][round_]
            taken[name].append(sample_s)
            report.partial(name, sample_s)
    for name, samples_s in taken.items():
        if behaviours[name].get("do") == "wrong":
            report.failed(name, "wrong_result", "after timing: error 0.5 exceeds 0.001")
            continue
        clock_hz = behaviours[name].get("clock_hz")
        report.done(name, {**VALUE, "samples_s": samples_s, "sm_clock_hz": clock_hz})


def _strike(name: str, what: str, report: Report) -> None:
    if what == "exit":
        os._exit(11)
    if what == "hang":
        time.sleep(HANG_S)
    if what == "sticky_error":
        report.sticky_error(name, "an illegal memory access was encountered")
