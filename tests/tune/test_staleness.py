"""What keeps a journal's attempts from being used."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest

from fa_tune.core.model import Outcome
from fa_tune.core.options import MeasureOptions
from fa_tune.core.workload import DType, benchmark_workload
from fa_tune.tune.flow import search as run_search
from fa_tune.tune.staleness import Difference, Staleness, why_stale
from tests.commands.console import Console
from tests.tune import fakes
from tests.tune.conftest import World
from tests.tune.fakes import FakeProfiler

KEYS = fakes.keys(4)
KEY = benchmark_workload(1024, 128, DType.FP16).key


def asked(world: World, *seq_lens: int, **changes: object) -> Staleness:
    plans = len(world.profiler.plans)
    found = why_stale(world.options(*seq_lens, **changes), world.progress)
    assert len(world.profiler.plans) == plans, "nothing is measured for it"
    return found


@pytest.mark.parametrize("method", ["ncu", "events"])
def test_after_a_search_everything_is_known(world: World, method: str) -> None:
    world.profiler = FakeProfiler(method=method)
    assert asked(world).sentence == ("4 attempts are needed: 0 known, 0 stale, 4 never made.")
    run_search(world.options(), world.progress)
    found = asked(world)
    assert {s.subject for s in found.standings} == set(KEYS)
    assert all(s.known for s in found.standings)


def test_adding_a_config_leaves_one_to_measure(world: World) -> None:
    run_search(world.options(), world.progress)
    world.configs = fakes.configs(5)
    assert asked(world).sentence.endswith("4 known, 0 stale, 1 never made.")


@pytest.mark.parametrize(
    ("change", "field", "was", "now"),
    [
        ({"driver": "590.1"}, "driver", "580.65.06", "590.1"),
        ({"name": "NVIDIA H100"}, "gpu", "NVIDIA H200", "NVIDIA H100"),
    ],
)
def test_another_machine_is_named(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, str],
    field: str,
    was: str,
    now: str,
) -> None:
    run_search(world.options(), world.progress)
    other = dataclasses.replace(fakes.H200, **change)
    monkeypatch.setattr(fakes, "H200", other)
    found = asked(world)
    assert {s.differences for s in found.stale} == {(Difference(field, was, now),)}
    assert (
        found.sentence == f"4 attempts are needed: 0 known, 4 stale (4 by {field}), 0 never made."
    )


def test_another_profiler_version_and_metrics_are_named(world: World) -> None:
    run_search(world.options(), world.progress)
    world.profiler.version = "2026.1"  # type: ignore[misc]
    world.profiler.metrics = ("a", "b")  # type: ignore[misc]
    fields = {d.field for s in asked(world).stale for d in s.differences}
    assert fields == {"profiler_version", "metrics"}


def test_of_several_the_most_similar_is_compared(world: World) -> None:
    world.profiler = FakeProfiler(method="events")
    run_search(world.options(runs=4), world.progress)
    world.profiler = FakeProfiler(method="ncu")
    run_search(world.options(), world.progress)
    world.profiler = FakeProfiler(method="events")
    found = asked(world, runs=7)
    assert {s.differences for s in found.stale} == {(Difference("runs", "4", "7"),)}


def test_a_failure_is_known_as_well(world: World) -> None:
    world.profiler = FakeProfiler(failures={KEYS[2]: (Outcome.CRASHED, "illegal address")})
    run_search(world.options(), world.progress)
    assert all(s.known for s in asked(world).standings)


def test_the_command_shows_fields_and_measures_nothing(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    console = Console(capsys)
    run_search(world.options(), world.progress)
    arguments = ("search", "--why-stale", "--seq-lens", "1024", "--dtype", "fp16")
    arguments += ("--cache-dir", str(world.folder / "cache"), "--runs", "2")
    world.profiler = FakeProfiler(method="events")
    done = console(*arguments)
    assert done.status == 0, done.err
    assert "4 stale" in done.out
    assert re.search(r"\bruns +\S+ +2\b", done.out)
    standings = json.loads(console(*arguments, "--json").out)["standings"]
    assert {s["workload"] for s in standings} == {KEY}
    assert world.profiler.plans == []
    assert MeasureOptions().profiler == "auto"
