"""What the workers of several GPUs do, without a GPU: `fa_tune.gpu` timed, verified, compare,
probe, and the A/B test.

The GPU is what CUDA_VISIBLE_DEVICES names.  In the folder $GPUS, `log` gets a line per
sample and verdict, when it is handed over; a file `dead-<gpu>` makes a GPU useless, and
`slow-<gpu>` is a factor on its times.  Times are a formula of subject and workload.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fa_tune.core import codec
from fa_tune.core.jobs import TimeResult
from fa_tune.core.model import CaseError, Verdict
from fa_tune.workers.main import Report

NAP_S = 0.01
RUNS = 3  # of a comparison
CASE = CaseError("b1_h1_kv1_q64_k64_d128_fp16_full", 1e-3, 6e-4, 2.2e-3, True)


def time_s(subject: str, workload: str) -> float:
    """1 to 2 ms, always the same."""
    digest = hashlib.sha256(f"{subject} {workload}".encode()).digest()
    return 1e-3 * (1 + int.from_bytes(digest[:4], "big") / 2**32)


class _Here:
    """The GPU of this process."""

    def __init__(self, shared: Mapping[str, Any]) -> None:
        self.folder = Path(os.environ["GPUS"])
        self.name = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        if shared["device"] != 0:
            raise RuntimeError("a pinned worker has one GPU, number 0")
        self.check()
        slow = self.folder / f"slow-{self.name}"
        self.factor = float(slow.read_text()) if slow.exists() else 1.0

    def load(self, items: Mapping[str, Any]) -> None:
        """A kernel is a file of this machine."""
        for item in items.values():
            cubin = Path(item["cubin"] or "/nowhere.cubin")
            if str(cubin) != "/nowhere.cubin" and cubin.read_bytes() != b"a kernel":
                raise RuntimeError(f"{cubin} is no kernel")

    def check(self) -> None:
        if (self.folder / f"dead-{self.name}").exists():
            raise RuntimeError("no CUDA-capable device is detected")

    def log(self, *what: object) -> None:
        line = json.dumps([self.name, os.getpid(), *what]) + "\n"
        descriptor = os.open(self.folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(descriptor, line.encode())
        os.close(descriptor)


def timed(shared: Mapping[str, Any], items: Mapping[str, Any], report: Report) -> None:
    here = _Here(shared)
    here.load(items)
    workload = shared["workload"]
    taken = {name: list(item["_partials"]) for name, item in items.items()}
    for round_ in range(int(shared["runs"])):
        for name in items:
            if len(taken[name]) > round_:
                continue
            report.begin(name)
            time.sleep(NAP_S)
            here.check()
            sample_s = time_s(name, workload) * here.factor * (1 + 1e-4 * round_)
            taken[name].append(sample_s)
            report.partial(name, sample_s)
            here.log("sample", name, workload, round_)
    for name in items:
        result = TimeResult(tuple(taken[name]), (), None, 2e-5, 1, 1, "", {}, ())
        report.done(name, codec.dump(result))


def verified(shared: Mapping[str, Any], items: Mapping[str, Any], report: Report) -> None:
    here = _Here(shared)
    here.load(items)
    for name in items:
        report.begin(name)
        time.sleep(NAP_S)
        here.check()
        here.log("verdict", name)
        report.done(name, codec.dump(Verdict(True, (CASE,))))


def confirm(shared: Mapping[str, Any], items: Mapping[str, Any], report: Report) -> None:
    here = _Here(shared)
    for name, item in items.items():
        report.begin(name)
        here.check()
        for file in (item["registry"], item["defaults"]):
            if '"entries"' not in Path(file).read_text():
                raise RuntimeError(f"{file} is no registry")
        times = {k: time_s(item[k], name) * here.factor for k in ("chosen", "default")}
        here.log("confirmed", name)
        report.done(name, {f"{k}_s": [t, t, t] for k, t in times.items()})


def compare(shared: Mapping[str, Any], items: Mapping[str, Any], report: Report) -> None:
    """On other inputs all take the time that they take on the usual ones."""
    here = _Here(shared)
    for name, item in items.items():
        here.load({kernel["subject"]: kernel for kernel in item["kernels"]})
        report.begin(name)
        here.check()
        times = [time_s(k["subject"], item["workload"]) * here.factor for k in item["kernels"]]
        here.log("compared", name)
        relative = [[t / times[0]] * RUNS for t in times]
        report.done(name, {"samples_s": [[t] * RUNS for t in times], "relative": relative})


def probe(shared: Mapping[str, Any], items: Mapping[str, Any], report: Report) -> None:
    _Here(shared)
    for name in items:
        report.begin(name)
        report.done(name, "a GPU")


def too_large(shared: Mapping[str, Any], items: Mapping[str, Any], report: Report) -> None:
    _Here(shared)
    raise MemoryError("the inputs do not fit")
