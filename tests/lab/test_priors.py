"""A search that begins with what was recorded on other workloads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fa_tune.core.errors import NoUsableVariant, StorageError
from fa_tune.core.model import Outcome
from fa_tune.lab.space_table import SUFFIX, SpaceMeta, SpaceRow, knob_types, save
from fa_tune.lab.strategies import priors_in
from fa_tune.search.strategies.base import knobs_of
from fa_tune.tune import flow
from tests.tune import fakes
from tests.tune.conftest import World
from tests.tune.fakes import H200, FakeProfiler

ELSEWHERE = "b16_h16_kv16_q4096_k4096_d128_fp16_full"
FASTEST = (17, 5, 11)


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Twenty configs on another workload, three of them fast."""
    times = {i: 1e-3 * (1 + rank / 10) for rank, i in enumerate(FASTEST)}
    rows = [
        SpaceRow(key, ELSEWHERE, Outcome.OK, knobs_of(config), (times.get(i, 2e-3),))
        for i, (key, config) in enumerate(
            zip(fakes.keys(20), fakes.parsed(fakes.configs(20)), strict=True)
        )
    ]
    save(tmp_path / f"x{SUFFIX}", rows, SpaceMeta(knob_types(r.knobs for r in rows), H200))
    return tmp_path


def first(world: World, n: int, *places: Path) -> list[str]:
    """What is scouted first."""
    world.configs = fakes.configs(20)
    world.profiler = FakeProfiler(method="events", default_runs=5)
    options = world.options(1024, references=(), strategy="learned", measurements=n)
    flow.search(options, world.progress, priors=priors_in(places))
    return [s for s, _, runs in world.profiler.measured if runs == 3]


def test_what_was_fast_elsewhere_is_measured_first(world: World, recorded: Path) -> None:
    scouted = first(world, 4, recorded)
    wanted = [fakes.keys(20)[i] for i in FASTEST]
    assert set(wanted) <= set(scouted)
    without = first(world, 4)
    assert not set(wanted) <= set(without)


def test_recordings_of_another_gpu_say_nothing(world: World, recorded: Path) -> None:
    about = recorded / "x.space.json"
    about.write_text(about.read_text().replace(H200.name, "NVIDIA B200"))
    message = f"no recorded space of an {H200.name} to learn from"
    with pytest.raises(NoUsableVariant, match=re.escape(message)):
        first(world, 4, recorded)
    assert world.profiler.measured == []


def test_a_place_without_recordings_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no recorded space"):
        priors_in([tmp_path])
