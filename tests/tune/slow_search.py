"""A whole search on a pretended H200: `python -m tests.tune.slow_search FOLDER NAP_S`.

It compiles for real and verifies in a real worker process that only pretends; every attempt
takes NAP_S and is written to FOLDER/attempts when it is finished and handed over.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from fa_tune import families
from fa_tune.core import devices
from fa_tune.core.jobs import ABTestJob, CompareInputsJob, VerifyJob
from fa_tune.core.model import Attempt
from fa_tune.core.options import MachineOptions, SearchOptions, Silent, WorkloadOptions
from fa_tune.core.workload import DType
from fa_tune.profile.base import MeasurePlan, OnStep
from fa_tune.tune import plan
from fa_tune.tune.flow import search
from tests.tune import fakes
from tests.tune.fakes import H200, FakeProfiler

SEQ_LENS = tuple(256 * n for n in range(1, 25))
N_CONFIGS = 2


class SlowProfiler(FakeProfiler):
    def __init__(self, folder: Path, nap_s: float) -> None:
        super().__init__()
        self._nap_s = nap_s
        self._log = os.open(folder / "attempts", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def measure(self, plan: MeasurePlan, on_step: OnStep) -> Iterator[Attempt]:
        for subject in plan.subjects:
            time.sleep(self._nap_s)
            attempt = self.attempt(subject, plan)
            line = json.dumps([subject, plan.workload.key, plan.runs])
            os.write(self._log, f"{line}\n".encode())
            yield attempt


def main(folder: Path, nap_s: float) -> None:

    profiler = SlowProfiler(folder, nap_s)
    devices.find_device = lambda index=0: H200
    families._FAMILIES = {"sm80": families.get("sm80")}  # what it compiles is what it takes
    VerifyJob.handler = "tests.tune.verify_child:handle"
    ABTestJob.handler = CompareInputsJob.handler = "tests.tune.verify_child:compare_nothing"
    plan.choose_profiler = lambda *_, **__: fakes.selected(profiler)
    plan.choose_configs = lambda *_, **__: fakes.parsed(fakes.configs(N_CONFIGS))
    os.environ["VERIFIED_LOG"] = str(folder / "verified")
    options = SearchOptions(
        workloads=WorkloadOptions(seq_lens=SEQ_LENS, dtypes=(DType.FP16,)),
        machine=MachineOptions(cache_dir=folder / "cache"),
        registry=folder / "registry.json",
    )
    print("ready", flush=True)
    result = search(options, Silent())
    print(json.dumps([result.measured, result.reused]), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
