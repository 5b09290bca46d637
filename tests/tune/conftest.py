"""A pipeline on a pretended H200: nothing is compiled, verified or measured for real."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from fa_tune.core import codec, devices
from fa_tune.core.jobs import ABTestJob, CompareInputsJob
from fa_tune.core.model import DeviceInfo, Outcome, Verdict
from fa_tune.core.options import MachineOptions, MeasureOptions, SearchOptions, WorkloadOptions
from fa_tune.core.workload import DType, Workload
from fa_tune.store.journal import Journal
from fa_tune.store.registry import file as store
from fa_tune.tune import build as building
from fa_tune.tune import plan, single
from fa_tune.tune.fleet import gpu as fleet_gpu
from fa_tune.tune.flow import search as run_search
from fa_tune.tune.results import SearchResult, WorkloadResult
from fa_tune.tune.session import ProfilerSelection, Session
from fa_tune.tune.tie_break import TieBreak, tie_break_for
from fa_tune.workers.supervisor import ItemResult
from tests.tune import fakes
from tests.tune.fakes import H200, FakeCompiler, FakeProfiler, Stages

PLAN = import_module("fa_tune.tune.plan")


class FakeVerifier:
    """In place of `run_items`: a verdict for every kernel; `wrong` and
    `crashing` by subject."""

    def __init__(self) -> None:
        self.wrong: set[str] = set()
        self.wrong_traits: set[str] = set()
        self.crashing: dict[str, tuple[Outcome, str]] = {}
        self.verified: list[str] = []
        self.asked: dict[str, Any] = {}

    def __call__(
        self, handler: str, shared: Mapping[str, Any], items: Mapping[str, Any], **more: Any
    ) -> Iterator[ItemResult]:
        self.asked = {"handler": handler, "shared": shared, "items": items, **more}
        for name, item in items.items():
            self.verified.append(name)
            subject = item["subject"]
            if subject in self.crashing:
                outcome, reason = self.crashing[subject]
                yield ItemResult(name, outcome, None, reason)
                continue
            wrong = subject in self.wrong or item["traits"] in self.wrong_traits
            verdict: Verdict = fakes.WRONG if wrong else fakes.RIGHT
            yield ItemResult(name, Outcome.OK, codec.dump(verdict))


class FakeConfirmer:
    """In place of `run_items`: pairs for every choice; `ratio` is chosen / default by workload
    key, one that confirms where it is not named; `broken` by workload key."""

    def __init__(self) -> None:
        self.ratio: dict[str, float] = {}
        self.broken: dict[str, tuple[Outcome, str]] = {}
        self.error: Exception | None = None
        self.asked: list[dict[str, Any]] = []

    def __call__(
        self, handler: str, shared: Mapping[str, Any], items: Mapping[str, Any], **more: Any
    ) -> Iterator[ItemResult]:
        for name, item in items.items():
            if self.error is not None:
                raise self.error
            kept = {
                f"{what}_entries": [e.chosen.key for e in store.load(item[what]).entries]
                for what in ("registry", "defaults")
            }
            self.asked.append({"handler": handler, "workload": name, **shared, **item, **kept})
            if name in self.broken:
                outcome, reason = self.broken[name]
                yield ItemResult(name, outcome, None, reason)
                continue
            ratio = self.ratio.get(name, 0.97)
            default_s = [1e-3 * (1 + i / 1e4) for i in range(12)]
            value = {"chosen_s": [ratio * s for s in default_s], "default_s": default_s}
            yield ItemResult(name, Outcome.OK, value)


class FakeComparer:
    """In place of `run_items`: samples on other inputs; `ratio` is a kernel's time over the
    default's by subject and inputs, 0.97 where it is not named; `cost` the default's time on
    inputs over that on normal ones, `clock` of the item of these inputs, both 1 where they are not
    named; `broken` by inputs; `errors` over FlashAttention 2's by subject and inputs."""

    def __init__(self) -> None:
        self.ratio: dict[tuple[str, str], float] = {}
        self.cost: dict[str, float] = {}
        self.clock: dict[str, float] = {}
        self.broken: dict[str, tuple[Outcome, str]] = {}
        self.errors: dict[tuple[str, str], float] = {}
        self.asked: list[tuple[str, str, tuple[str, ...]]] = []

    def __call__(
        self, handler: str, shared: Mapping[str, Any], items: Mapping[str, Any], **more: Any
    ) -> Iterator[ItemResult]:
        for name, item in items.items():
            subjects = tuple(kernel["subject"] for kernel in item["kernels"])
            self.asked.append((item["workload"], item["inputs"], subjects))
            if item["inputs"] in self.broken:
                outcome, reason = self.broken[item["inputs"]]
                yield ItemResult(name, outcome, None, reason)
                continue
            inputs, own = item["inputs"], item["own_inputs"]
            ratios = [self.ratio.get((s, inputs), 0.97) for s in subjects]
            relative = [[1.0] * 5] + [[ratio] * 5 for ratio in ratios[1:]]
            cost = self.cost.get(inputs, 1.0)
            seconds = 2e-3 * cost / self.clock.get(inputs, 1.0)
            value = {
                "samples_s": [[seconds * ratio for ratio in taken] for taken in relative],
                "relative": relative,
                "to_own_inputs": [cost / self.cost.get(own, 1.0)] * 5 if own else [],
                "errors": [self.errors.get((s, inputs)) for s in subjects],
            }
            yield ItemResult(name, Outcome.OK, value)


@dataclass
class World:
    """Everything a search meets, to be changed by a test before it."""

    folder: Path
    profiler: FakeProfiler = field(default_factory=FakeProfiler)
    compiler: FakeCompiler = field(default_factory=FakeCompiler)
    verifier: FakeVerifier = field(default_factory=FakeVerifier)
    confirmer: FakeConfirmer = field(default_factory=FakeConfirmer)
    comparer: FakeComparer = field(default_factory=FakeComparer)
    tie_break: TieBreak = field(default_factory=TieBreak)  # of a search that measures
    progress: Stages = field(default_factory=Stages)
    device: DeviceInfo | None = H200
    configs: Sequence[str] = field(default_factory=lambda: fakes.configs(4))

    def options(self, *seq_lens: int, **changes: Any) -> SearchOptions:
        """FP16 workloads of these lengths; `changes` for fields of any of the options."""
        grid = {"seq_lens": seq_lens or (1024,), "dtypes": (DType.FP16,)}
        return SearchOptions(
            workloads=WorkloadOptions(**{**grid, **_only(WorkloadOptions, changes)}),
            measure=MeasureOptions(**_only(MeasureOptions, changes)),
            machine=MachineOptions(
                **{"cache_dir": self.folder / "cache", **_only(MachineOptions, changes)}
            ),
            **{"registry": self.registry, "kernels": "tune", **_only(SearchOptions, changes)},
        )

    @property
    def registry(self) -> Path:
        return self.folder / "registry.json"

    @property
    def journal(self) -> Journal:
        return Journal(self.folder / "cache" / "journal.sqlite")

    def tie_break_for(self, session: Session, workloads: Iterable[Workload]) -> TieBreak:
        if session.capabilities.measures_anew:
            return self.tie_break
        return tie_break_for(session, workloads)

    def choose_profiler(self, *_: object, **__: object) -> ProfilerSelection:
        return fakes.selected(self.profiler)

    def run_items(self, handler: str, *args: Any, **more: Any) -> Iterator[ItemResult]:
        """In place of the workers that verify, and of those that compare."""
        fakes_by_handler: dict[str, Any] = {
            ABTestJob.handler: self.confirmer,
            CompareInputsJob.handler: self.comparer,
        }
        fake = fakes_by_handler.get(handler, self.verifier)
        found: Iterator[ItemResult] = fake(handler, *args, **more)
        return found


def _only(kind: Any, changes: Mapping[str, Any]) -> dict[str, Any]:
    own = set(kind.__dataclass_fields__) - {"workloads", "measure", "machine"}
    return {name: value for name, value in changes.items() if name in own}


def search(world: World, *seq_lens: int, **changes: object) -> SearchResult:
    return run_search(world.options(*seq_lens, **changes), world.progress)


def only(result: SearchResult) -> WorkloadResult:
    (one,) = result.results
    return one


@pytest.fixture(autouse=True)
def _one_family(only_sm80: None) -> None:
    pass


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(tmp_path)
    compile_all: Callable[..., Any] = lambda *args: world.compiler(*args)  # noqa: E731
    monkeypatch.setattr(devices, "find_device", lambda index=0: world.device)
    monkeypatch.setattr(fleet_gpu, "run_items", world.run_items)
    monkeypatch.setattr(PLAN, "tie_break_for", world.tie_break_for)
    for module in (building, single):
        monkeypatch.setattr(module, "build_all", compile_all)
    for module in (PLAN, single):
        monkeypatch.setattr(module, "choose_profiler", world.choose_profiler)
    for module in (plan, single):
        monkeypatch.setattr(module, "choose_configs", lambda *_, **__: fakes.parsed(world.configs))
    return world
