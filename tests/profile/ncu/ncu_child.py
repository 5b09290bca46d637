"""What `fa_tune.gpu.jobs.ncu_target` does, without a GPU: the same reports in the same order.

A variant's `cubin` is its duration in nanoseconds and, after a colon, what goes wrong where:
`5000`, `5000:segfault in 1` (round 1 of the window), `5000:hang in prepare`.  Launches inside
the window are told to `fake_ncu.py`, which plays the driver's part.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fa_tune.core.jobs import FIRST_LAUNCH, ProfileJob
from fa_tune.core.model import Outcome
from fa_tune.workers.main import Report

# A library call's kernels with their durations.
CALLS: dict[str, tuple[tuple[str, int], ...]] = {
    "ref:fa2": (("_ZN13pytorch_flash16flash_fwd_kernelIN23Flash_fwd_kernel_traitsE", 9000),),
    "ref:cudnn": (("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7", 4000),),
}
SPLIT = (
    ("_ZN13pytorch_flash24flash_fwd_splitkv_kernelIN23Flash_fwd_kernel_traitsE", 8000),
    ("_ZN13pytorch_flash32flash_fwd_splitkv_combine_kernelIN23Flash_fwd_kernel_traitsE", 500),
)
HANG_S = 3600


class _Failed(Exception):
    """The item cannot go on; the process can."""


def handle(shared: Mapping[str, Any], items: Mapping[str, Any], report: Report) -> None:
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "GPU-gone":
        raise RuntimeError("no CUDA-capable device is detected")
    launches = os.environ["FAKE_NCU_LAUNCHES"]
    job = ProfileJob.read(shared, items)
    last = ""
    for workload in dict.fromkeys(item["workload"] for item in items.values()):
        mine = {name: item for name, item in items.items() if item["workload"] == workload}
        able = _prepared(mine, report)
        subjects = {name: mine[name]["subject"] for name in able}
        if subjects and set(subjects.values()) == {last} and last.startswith("ref:"):
            return
        for round_ in range(int(shared["rounds"])):
            order = job.order(round_, list(subjects), last=last)
            for name in order:
                report.begin(name)
                try:
                    _strike(name, items[name], str(round_), report)
                except _Failed:
                    del subjects[name]
                    continue
                with open(launches, "a") as stream:
                    for kernel, duration_ns in _kernels(items[name]):
                        line = {"kernel": kernel, "duration_ns": duration_ns + round_}
                        stream.write(json.dumps(line) + "\n")
                report.partial(name, round_)
            last = ""
        last = items[order[-1]]["subject"] if order else ""
        for name in subjects:
            report.done(name, None)


def first_launch(device: int) -> None:
    """What `fa_tune.gpu.context.begin_profiling` makes the driver tell ncu."""
    with open(os.environ["FAKE_NCU_LAUNCHES"], "a") as stream:
        stream.write(json.dumps({"kernel": FIRST_LAUNCH, "duration_ns": 900}) + "\n")


def prepare(device: int) -> None:
    Path(os.environ["TOLD"]).write_text(f"{os.environ.get('CUDA_VISIBLE_DEVICES')} {device}")


def _prepared(items: Mapping[str, Any], report: Report) -> list[str]:
    able: list[str] = []
    for name, item in items.items():
        report.begin(name)
        if os.environ.get("FAKE_NCU_STOPS"):
            os.kill(os.getpid(), signal.SIGKILL)  # ncu shuts the program down
        try:
            _strike(name, item, "prepare", report)
        except _Failed:
            continue
        able.append(name)
    return able


def _kernels(item: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    if item["subject"].startswith("ref:"):
        split = os.environ.get("FAKE_SPLIT_FA2") and item["subject"] == "ref:fa2"
        return SPLIT if split else CALLS[item["subject"]]
    return ((item["symbols"][0], int(item["cubin"].partition(":")[0])),)


def _strike(name: str, item: Mapping[str, Any], place: str, report: Report) -> None:
    what, _, where = item.get("cubin", "").partition(":")[2].partition(" in ")
    if where != place:
        return
    match what:
        case "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "killed-once":  # $FAKE_NCU_LAUNCHES is of one process, this file of all
            mark = Path(os.environ["FAKE_NCU_CALLS"]).with_name("killed-once")
            if not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            time.sleep(HANG_S)
        case "sticky_error":
            report.sticky_error(name, "an illegal memory access was encountered")
        case "refuse":
            report.failed(name, Outcome.CRASHED, "out of GPU memory: tried to allocate")
            raise _Failed
        case _:
            raise AssertionError(what)
