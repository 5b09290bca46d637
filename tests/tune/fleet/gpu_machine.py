"""A machine with three GPUs that only the environment of their worker processes knows."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from fa_tune.core import devices
from fa_tune.core.jobs import ABTestJob, CompareInputsJob, ProbeJob, TimeJob, VerifyJob
from fa_tune.core.model import Outcome
from fa_tune.core.options import MachineOptions, MeasureOptions, SearchOptions, WorkloadOptions
from fa_tune.core.workload import DType
from fa_tune.profile.events import EventsProfiler
from fa_tune.store.journal import AttemptRecord, Journal
from fa_tune.tune import build as building
from fa_tune.tune import plan, single
from fa_tune.tune.results import SearchResult
from fa_tune.tune.session import ProfilerSelection
from tests.tune import fakes
from tests.tune.fakes import H200, FakeCompiler, Stages

SEARCH = import_module("fa_tune.tune.flow")
SPACE = import_module("fa_tune.lab.record_space")
LENGTHS = (256, 512, 768, 1024, 1280, 1536)
N_CONFIGS = 4
RUNS = 3


@dataclass
class Machine:
    """A machine with some GPUs; `folder` tells the worker processes about them, `gpus` the
    command."""

    folder: Path
    progress: Stages = field(default_factory=Stages)
    lengths: tuple[int, ...] = LENGTHS
    gpus: Mapping[str, str] = field(default_factory=lambda: {"devices": "all"})

    def options(self, *lengths: int, **changes: Any) -> SearchOptions:
        options = SearchOptions(
            workloads=WorkloadOptions(seq_lens=lengths or self.lengths, dtypes=(DType.FP16,)),
            measure=MeasureOptions(profiler="events", runs=RUNS, references=(), item_timeout_s=30),
            machine=MachineOptions(cache_dir=self.folder / "cache", **self.gpus),
            registry=self.folder / "registry.json",
            kernels="tune",
        )
        return replace(options, **changes)

    def search(self, *lengths: int, **changes: Any) -> SearchResult:
        result: SearchResult = SEARCH.search(self.options(*lengths, **changes), self.progress)
        return result

    def log(self, kind: str) -> list[list[Any]]:
        """[gpu, pid, …] of what was handed over, in order."""
        path = self.folder / "log"
        text = path.read_text() if path.exists() else ""
        whole, _, _ = text.rpartition("\n")  # what follows is being written
        found = [json.loads(line) for line in whole.splitlines()]
        return [[gpu, pid, *rest] for gpu, pid, what, *rest in found if what == kind]

    def kills(self, n: int, gpu: str = "", *, dies: bool = False) -> threading.Thread:
        """A thread that kills the worker of some GPU (or `gpu`) with SIGKILL after `n`
        samples; the GPU `dies` with it."""

        def kill() -> None:
            until = time.monotonic() + 30
            while time.monotonic() < until:
                if len(self.log("sample")) >= n:
                    victims = [v for v in self.log("sample") if gpu in ("", v[0])]
                    if victims:
                        name, pid, *_ = victims[-1]
                        if _killed(pid):
                            # After it: a worker that sees it first would end by itself.  The next
                            # one takes its time to start.
                            if dies:
                                (self.folder / f"dead-{name}").touch()
                            return
                time.sleep(0.002)

        thread = threading.Thread(target=kill)
        thread.start()
        return thread

    @property
    def journal(self) -> Journal:
        return Journal(self.folder / "cache" / "journal.sqlite")

    @property
    def attempts(self) -> list[AttemptRecord]:
        """The journal's, without the confirmations and comparisons on other inputs."""
        found = [r for r in self.journal.records() if isinstance(r, AttemptRecord)]
        return [r for r in found if r.fingerprint.method not in ("runtime", "inputs")]

    @property
    def journaled(self) -> Counter[tuple[str, str]]:
        """(subject, workload) of the attempts."""
        assert {r.attempt.outcome for r in self.attempts} <= {Outcome.OK}
        return Counter((r.attempt.subject, r.attempt.workload) for r in self.attempts)

    @property
    def everything(self) -> Counter[tuple[str, str]]:
        """(subject, workload) of a whole search."""
        grid = self.options().workloads.workloads()
        return Counter((key, w.key) for key in fakes.keys(N_CONFIGS) for w in grid)

    @property
    def used(self) -> dict[str, set[str]]:
        """The GPUs that took samples of each workload."""
        found = defaultdict[str, set[str]](set)
        for gpu, _, _, workload, _ in self.log("sample"):
            found[workload].add(gpu)
        return found


def _killed(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:  # it has just ended
        return False
    return True


def pretend_work(monkeypatch: pytest.MonkeyPatch, compiler: Callable[..., object]) -> None:
    """A compiler in place of ours, and in workers what `gpu_child` does."""
    monkeypatch.setattr(VerifyJob, "handler", "tests.tune.fleet.gpu_child:verified")
    monkeypatch.setattr(ABTestJob, "handler", "tests.tune.fleet.gpu_child:confirm")
    monkeypatch.setattr(CompareInputsJob, "handler", "tests.tune.fleet.gpu_child:compare")
    monkeypatch.setattr(ProbeJob, "handler", "tests.tune.fleet.gpu_child:probe")
    for module in (building, single):
        monkeypatch.setattr(module, "build_all", lambda *args: compiler(*args))
    monkeypatch.setattr(
        plan, "choose_configs", lambda *_, **__: fakes.parsed(fakes.configs(N_CONFIGS))
    )


def pretend(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """The machine in place of this one, and of the compiler."""
    monkeypatch.setenv("GPUS", str(folder))
    found = tuple(replace(H200, uuid=f"GPU-{name}") for name in "abc")
    monkeypatch.setattr(devices, "find_devices", lambda numbers: found)
    monkeypatch.setattr(TimeJob, "handler", "tests.tune.fleet.gpu_child:timed")
    pretend_work(monkeypatch, FakeCompiler())
    selection = ProfilerSelection(EventsProfiler(), H200, "measured on this machine's NVIDIA H200")
    for module in (plan, single, SPACE):
        monkeypatch.setattr(module, "choose_profiler", lambda *_, **__: selection)
    return Machine(folder)
