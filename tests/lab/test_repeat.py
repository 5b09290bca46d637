"""The same search several times, each as if it were the first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fa_tune.core.errors import InvalidConfig, NoUsableVariant
from fa_tune.core.options import Progress, SearchOptions
from fa_tune.core.workload import DType, Workload, benchmark_workload
from fa_tune.lab import repeat, repeatability
from fa_tune.lab.repeat import tune_many
from fa_tune.lab.repeatability import agreement
from fa_tune.tune.results import SearchResult
from tests.tune import fakes
from tests.tune.conftest import World
from tests.tune.fakes import FakeProfiler

DEFAULT, FAST, SLOW, OTHER = fakes.keys(4)
KEY = benchmark_workload(1024, 128, DType.FP16).key


def flipping(seed: int) -> Callable[[str, Workload], float]:
    """Two configs at the top, of which each seed likes another one by a hair."""
    first, second = (FAST, OTHER) if seed % 2 else (OTHER, FAST)
    times = {DEFAULT: 2e-3, SLOW: 3e-3, first: 1e-3, second: 1.0002e-3}
    return lambda subject, _: times.get(subject, 5e-3)


@pytest.fixture
def options(world: World, monkeypatch: pytest.MonkeyPatch) -> SearchOptions:
    """Every tuning with times by its seed; what each saw is in `world`."""
    plain = repeat.search

    def search(given: SearchOptions, progress: Progress) -> SearchResult:
        world.profiler = FakeProfiler(flipping(given.measure.seed), method="events")
        return plain(given, progress)

    monkeypatch.setattr(repeat, "search", search)
    return world.options(1024)


def test_each_starts_from_nothing_but_the_check_of_results(
    world: World, options: SearchOptions, tmp_path: Path
) -> None:
    found = tune_many(options, 3, world.progress)
    assert [t.seed for t in found.tunings] == [0, 1, 2]
    assert world.verifier.verified == [f"{s} @ plain" for s in (DEFAULT, FAST, SLOW, OTHER)]
    assert len(world.confirmer.asked) == 3
    assert not (tmp_path / "cache" / "journal.sqlite").exists(), "the user's own is not touched"
    assert not world.registry.exists()


def test_the_rule_agrees_where_plain_minimum_flips(world: World, options: SearchOptions) -> None:
    found = agreement(tune_many(options, 4, world.progress).tunings)
    assert found.workload == KEY
    assert found.flips == 0
    assert found.flips_lowest_median == found.flips_lowest_sample == 2
    assert found.slower == 0
    assert found.worst is not None
    assert found.worst.value == pytest.approx(0.5, abs=0.01)
    assert found.worst_confirmed is not None


def test_finished_tunings_are_kept_and_not_repeated(
    world: World, options: SearchOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ten.json"
    first = tune_many(options, 2, world.progress, to=path)
    assert repeatability.load(path) == first
    asked = len(world.confirmer.asked)
    more = tune_many(options, 3, world.progress, to=path)
    assert more.tunings[:2] == first.tunings
    assert len(more.tunings) == 3
    assert len(world.confirmer.asked) == asked + 1


def test_a_file_of_other_workloads_is_refused(
    world: World, options: SearchOptions, tmp_path: Path
) -> None:
    path = tmp_path / "ten.json"
    tune_many(options, 2, world.progress, to=path)
    with pytest.raises(InvalidConfig, match="tunings of other workloads"):
        tune_many(world.options(2048), 2, world.progress, to=path)


def test_a_tuning_that_finds_nothing_ends_it_in_its_own_words(
    world: World, options: SearchOptions
) -> None:
    world.compiler.refused = dict.fromkeys(fakes.keys(4), "ptxas error")
    with pytest.raises(NoUsableVariant, match="ptxas error"):
        tune_many(options, 2, world.progress)
