"""Recording a space: everything measured once, in groups that survive an interruption."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from fa_tune.core.errors import InvalidConfig, NoUsableVariant
from fa_tune.core.model import Outcome
from fa_tune.core.workload import Workload
from fa_tune.families.base import Config
from fa_tune.lab.record_space import record_space
from fa_tune.lab.space_table import SUFFIX, load, recorded
from fa_tune.tune.profilers import choose_profiler
from tests.tune import fakes
from tests.tune.conftest import World
from tests.tune.fakes import FakeProfiler, by_hash
from tests.tune.recorded import record

RECORDING = import_module("fa_tune.lab.record_space")


@pytest.fixture(autouse=True)
def _pretended(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RECORDING, "choose_profiler", world.choose_profiler)
    monkeypatch.setattr(RECORDING, "CHUNK", 3)


def wanted(n: int = 10) -> list[Config]:
    return fakes.parsed(fakes.configs(n))


def test_the_table_has_every_config_with_knobs_facts_and_counters(
    world: World, tmp_path: Path
) -> None:
    to = tmp_path / f"x{SUFFIX}"
    world.profiler = FakeProfiler(failures={fakes.keys(10)[4]: (Outcome.CRASHED, "boom")})
    made = record_space(wanted(), world.options(1024, 2048), to, world.progress)
    table = load(to)
    assert table.rows == made.rows
    assert [r.variant for r in table.rows] == fakes.keys(10) * 2
    first = table.rows[0]
    assert first.knobs["B_r"] == 128
    assert first.facts["registers"] == 168
    assert first.facts["warps_per_sm"] == 8
    assert first.counters["sm__cycles_elapsed.max"] > 0
    assert table.meta.units == {"sm__cycles_elapsed.max": "cycle"}
    assert table.rows[4].outcome is Outcome.CRASHED
    assert table.rows[4].reason == "boom"
    assert table.meta.device is not None
    assert table.meta.device.uuid == ""
    for one in recorded(table):
        assert one.space.start == (0,)
        assert one.times_s[1] == pytest.approx(
            by_hash(fakes.keys(2)[1], world.options(1024, 2048).workloads.workloads()[0])
            if one.rows[0].workload.count("1024")
            else by_hash(fakes.keys(2)[1], world.options(1024, 2048).workloads.workloads()[1]),
            rel=1e-3,
        )


def test_every_group_has_the_default(world: World, tmp_path: Path) -> None:
    world.profiler = FakeProfiler(method="events")
    made = record_space(wanted(), world.options(), tmp_path / f"x{SUFFIX}", world.progress)
    groups = [list(plan.artifacts) for plan in world.profiler.plans]
    assert [len(g) for g in groups] == [4, 4, 4]
    assert all(fakes.keys(1)[0] in g for g in groups)
    assert "the default's median varied by 0.00 % between chunks" in made.meta.note


def test_results_are_checked_before_where_timing_does_not(world: World, tmp_path: Path) -> None:
    world.verifier.wrong = {fakes.keys(2)[1]}
    made = record_space(wanted(3), world.options(), tmp_path / f"x{SUFFIX}", world.progress)
    assert [r.outcome for r in made.rows] == [Outcome.OK, Outcome.WRONG_RESULT, Outcome.OK]
    world.verifier.verified.clear()
    world.profiler = FakeProfiler(method="events")  # which checks after timing
    record_space(wanted(3), world.options(), tmp_path / f"y{SUFFIX}", world.progress)
    assert world.verifier.verified == []


def test_a_recording_that_was_interrupted_goes_on(world: World, tmp_path: Path) -> None:
    to = tmp_path / f"x{SUFFIX}"
    world.profiler = FakeProfiler(method="events", interrupt_after=9)
    with pytest.raises(KeyboardInterrupt):
        record_space(wanted(), world.options(), to, world.progress)
    assert not to.exists()
    world.profiler = FakeProfiler(method="events")
    made = record_space(wanted(), world.options(), to, world.progress)
    assert len(made.rows) == 10
    again = {s for s, _, _ in world.profiler.measured}
    assert len(again) == 3  # what was left of the third group, and the default beside it


def test_a_larger_recording_has_the_default_beside_what_is_new(
    world: World, tmp_path: Path
) -> None:
    """Its samples in the journal are of other rounds than those of the new configs."""
    for n, taken in ((3, fakes.keys(3)), (4, [fakes.keys(4)[3], fakes.keys(1)[0]])):
        world.profiler = FakeProfiler(method="events")
        record_space(wanted(n), world.options(), tmp_path / f"x{SUFFIX}", world.progress)
        assert {s for s, _, _ in world.profiler.measured} == set(taken)


def test_a_sample_has_the_default_and_is_the_same_for_the_same_seed(
    world: World, tmp_path: Path
) -> None:
    def sample(seed: int) -> list[str]:
        options = world.options(seed=seed)
        to = tmp_path / f"x{SUFFIX}"
        made = record_space(wanted(), options, to, world.progress, at_most=4)
        return [r.variant for r in made.rows]

    assert sample(1) == sample(1) != sample(2)
    assert len(sample(1)) == 4
    assert fakes.keys(1)[0] in sample(1)


def test_nothing_measured_leaves_no_file(world: World, tmp_path: Path) -> None:
    to = tmp_path / f"x{SUFFIX}"
    world.profiler = FakeProfiler(
        failures=dict.fromkeys(fakes.keys(2), (Outcome.CRASHED, "no luck"))
    )
    with pytest.raises(NoUsableVariant, match="nothing was measured: no luck"):
        record_space(wanted(2), world.options(), to, world.progress)
    assert not to.exists()


def test_configs_of_two_families_are_refused(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = iter(["sm80", "other"])
    family = type("F", (), {})

    def of(config: object) -> object:
        one = family()
        one.name = next(names)  # type: ignore[attr-defined]
        return one

    monkeypatch.setattr(RECORDING.families, "of", of)
    monkeypatch.setattr(RECORDING, "prune_configs", lambda configs, _: (list(configs), ()))
    with pytest.raises(InvalidConfig, match="one family, not of other, sm80"):
        record_space(wanted(2), world.options(), tmp_path / f"x{SUFFIX}", world.progress)


def test_a_group_whose_default_is_off_is_measured_again(world: World, tmp_path: Path) -> None:
    """The default takes 1.28 times as long in the second group; not when that is repeated."""
    default = fakes.keys(1)[0]
    calls = iter([1.0, 1.28, 1.0, 1.0])

    def time(subject: str, workload: Workload) -> float:
        return by_hash(subject, workload) * (next(calls) if subject == default else 1.0)

    world.profiler = FakeProfiler(time, method="events")
    made = record_space(wanted(), world.options(), tmp_path / f"x{SUFFIX}", world.progress)
    groups = [set(plan.artifacts) for plan in world.profiler.plans]
    assert len(groups) == 4
    assert groups[3] == groups[1]
    assert "1 chunks were measured again" in made.meta.note
    assert "0 of them" in made.meta.note
    assert "varied by 0.00 %" in made.meta.note
    assert len(made.rows) == 10


def test_a_replay_takes_the_recording_of_most_configs_and_counts_those_that_lack(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RECORDING, "choose_profiler", choose_profiler)
    world.device = None
    folder = tmp_path / "profiles"
    record(folder, "fast", "ncu", "2026-03-01T00:00:00+00:00", {fakes.keys(1)[0]: 1e-3})
    times = dict.fromkeys(fakes.keys(3), 2e-3)
    record(folder, "tune", "events", "2026-01-01T00:00:00+00:00", times)
    options = world.options(recordings=folder)
    made = record_space(wanted(10), options, tmp_path / f"x{SUFFIX}", world.progress)
    assert [row.samples_s for row in made.rows] == [(2e-3,)] * 3
    assert made.meta.provenance is not None
    assert made.meta.provenance.recorded_at.startswith("2026-01-01")
    assert "tune.csv" in made.source
    assert "fast.csv" not in made.source
    lacking = [note for note in (*world.progress.notes, made.meta.note) if "7 " in note]
    assert len(lacking) == 2, "told, and kept with the table"
    assert len({r.variant.key for r in world.compiler.requests}) == 3


def test_a_table_of_several_recordings_names_them(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its provenance is that of the one with most configs."""
    monkeypatch.setattr(RECORDING, "choose_profiler", choose_profiler)
    world.device = None
    folder = tmp_path / "profiles"
    subjects = fakes.keys(4)
    dates = ("2026-01-01T00:00:00+00:00", "2026-03-01T00:00:00+00:00")
    record(folder, "most", "ncu", dates[0], dict.fromkeys(subjects[:3], 2e-3))
    record(folder, "newer", "ncu", dates[1], {subjects[3]: 1e-3})
    options = world.options(recordings=folder)
    made = record_space(wanted(4), options, tmp_path / f"x{SUFFIX}", world.progress)
    assert made.meta.provenance is not None
    assert made.meta.provenance.recorded_at == dates[0]
    assert all(name in made.meta.note for name in ("most.csv", "newer.csv"))
