"""A search over two families: one flow and one winner."""

from __future__ import annotations

import dataclasses
from importlib import import_module
from types import SimpleNamespace

import pytest

from fa_tune import families
from fa_tune.build.compile import kernel_source_sha256
from fa_tune.core.arch import limits
from fa_tune.core.errors import InvalidConfig, NoUsableVariant
from fa_tune.core.model import Outcome, Variant
from fa_tune.core.workload import DType
from fa_tune.report.tables import tables_of
from fa_tune.store.registry import file as store
from fa_tune.store.table.kernel_names import identify
from fa_tune.store.table.read_csv import parse_rows
from fa_tune.tune.candidates import choose_families, runnable
from fa_tune.tune.machine_check import doctor
from fa_tune.tune.single import bench, build, profile
from tests.families.wave import WaveFamily
from tests.tune import fakes
from tests.tune.conftest import World, only
from tests.tune.fakes import FakeProfiler
from tests.tune.two_families.conftest import (
    SM80_DEFAULT,
    SM80_OTHER,
    WAVE,
    WAVE_BEST,
    WAVE_DEFAULT,
    again,
    by_family,
    search,
    times,
)

SM80_FORM = Variant.from_key(SM80_OTHER).config


# What comes out ---------------------------------------------------------------------------------


def test_the_winner_is_the_best_over_the_families(world: World) -> None:
    result = search(world)
    one = only(result)
    tried = by_family(a.subject for a in one.attempts)
    assert set(tried) == {"ref", "sm80", "wave"}
    assert len(tried["sm80"]) == 41, "the tune set, and sm80's own default, which is not in it"
    assert SM80_DEFAULT in tried["sm80"]
    assert sorted(tried["wave"]) == sorted(WAVE)
    assert one.decision.chosen.subject == WAVE_BEST
    assert one.decision.default == WAVE_DEFAULT, "wave is preferred on this device"
    (entry,) = store.load(world.registry).entries
    assert entry.chosen.key == WAVE_BEST
    assert entry.default == Variant.from_key(WAVE_DEFAULT)
    assert entry.ratio_to_default.value == pytest.approx(0.9)
    assert entry.traits == "ragged", "1024 is no multiple of 176"
    assert entry.provenance.kernel_source_sha256 == kernel_source_sha256("wave")
    archs = {(r.variant.family, r.arch) for r in world.compiler.requests}
    assert archs == {("sm80", "sm_90"), ("wave", "sm_90a")}
    first, second = one.families
    assert (first.family, first.best, first.default) == ("wave", WAVE_BEST, WAVE_DEFAULT)
    assert first.ratio_to_default == pytest.approx(0.9, rel=1e-3)
    assert (second.family, second.best, second.default) == ("sm80", SM80_OTHER, SM80_DEFAULT)
    assert second.ratio_to_default == pytest.approx(0.9, rel=1e-3)
    assert second.median_s == pytest.approx(1.8e-3, rel=1e-3)


def test_a_winner_of_another_family_than_the_default_names_it(world: World) -> None:
    world.profiler = FakeProfiler(times(sm80=0.5, wave=1.0))
    decision = only(search(world)).decision
    assert decision.chosen.subject == SM80_OTHER
    assert decision.sentence.endswith(f"less time than the default, {WAVE_DEFAULT}.")
    (entry,) = store.load(world.registry).entries
    assert (entry.chosen.family, entry.default) == ("sm80", Variant.from_key(WAVE_DEFAULT))
    assert entry.provenance.kernel_source_sha256 == kernel_source_sha256("sm80")


@pytest.mark.parametrize("how", ["refused", "wrong"])
def test_where_the_preferred_default_fails_the_next_one_is_meant(world: World, how: str) -> None:
    if how == "refused":
        world.compiler.refused = {WAVE_DEFAULT: "ptxas gave up"}
    else:
        world.verifier.wrong = {WAVE_DEFAULT}
    decision = only(search(world)).decision
    assert decision.default == SM80_DEFAULT
    assert decision.chosen.subject == WAVE_BEST


def test_the_table_and_the_file_tell_the_family(world: World) -> None:
    path = world.folder / "table.csv"
    search(world, csv=path)
    rows = parse_rows(path.read_text("utf-8"), str(path))
    assert {row.family for row in rows} == {"ref", "sm80", "wave"}
    best = next(row for row in rows if row.is_variant)
    assert Variant(best.family, best.kernel).key == WAVE_BEST
    whole = next(row for row in rows if row.kernel == WAVE_DEFAULT.removeprefix("wave:"))
    assert whole.tflops is not None, "the tiled count asks the family for its blocks"
    (table,) = tables_of(rows)
    assert [column.heading for column in table.columns[:2]] == ["Kernel Name", "family"]
    (alone,) = tables_of([row for row in rows if row.family != "wave"])
    assert "family" not in [column.heading for column in alone.columns], "nothing to tell apart"


def test_a_profiled_kernel_is_known_by_its_name(wave: WaveFamily) -> None:
    config = families.parse(WAVE_BEST.removeprefix("wave:"))
    found = identify("void " + wave.name_expression(config, "causal+ragged") + "(TensorMap)")
    assert (found.family, found.label) == ("wave", WAVE_BEST.removeprefix("wave:"))
    assert (found.blocks, found.causal, found.ragged) == ((128, 176), True, True)


# Choosing families ------------------------------------------------------------------------------


def test_a_device_searches_what_runs_on_it(world: World) -> None:
    world.device = dataclasses.replace(fakes.H200, compute_capability=(8, 0))
    one = only(search(world))
    assert set(by_family(a.subject for a in one.attempts)) == {"ref", "sm80"}
    assert one.decision.default == SM80_DEFAULT
    world.device = dataclasses.replace(fakes.H200, compute_capability=(8, 0))
    with pytest.raises(NoUsableVariant, match="run on sm_80: needs sm_90, the device is sm_80"):
        search(world, families=("wave",))


def test_one_family_of_choice_competes_with_the_devices_default(world: World) -> None:
    one = only(search(world, families=("sm80",)))
    tried = by_family(a.subject for a in one.attempts)
    assert tried["wave"] == [WAVE_DEFAULT]
    assert len(tried["sm80"]) == 41
    assert one.decision.chosen.subject == WAVE_DEFAULT


def test_a_search_of_one_family_does_not_replace_what_another_holds(world: World) -> None:
    search(world)
    again(world)
    search(world, families=("sm80",))
    (entry,) = store.load(world.registry).entries
    assert entry.chosen.key == WAVE_BEST


def test_no_family_for_a_device(monkeypatch: pytest.MonkeyPatch, wave: WaveFamily) -> None:
    monkeypatch.delitem(families._FAMILIES, "sm80")
    with pytest.raises(NoUsableVariant, match="no family of kernels runs on sm_86: needs sm_90"):
        choose_families((), limits((8, 6)))


def test_a_short_form_tells_its_family(world: World) -> None:
    config = WAVE_BEST.removeprefix("wave:")
    one = only(search(world, kernels=config, d_heads=(64,)))
    tried = by_family(a.subject for a in one.attempts)
    assert sorted(tried["wave"]) == sorted((WAVE_DEFAULT, WAVE_BEST))
    assert "sm80" not in tried, "the device's default is wave's own"
    again(world)
    tried = by_family(a.subject for a in only(search(world, kernels=SM80_FORM)).attempts)
    assert sorted(tried["sm80"]) == sorted((SM80_DEFAULT, SM80_OTHER))
    assert sorted(tried["wave"]) == sorted((WAVE_DEFAULT, WAVE_BEST)), "and what the registry holds"
    with pytest.raises(InvalidConfig, match="is of family wave, but sm80 is asked for"):
        search(world, kernels=config, families=("sm80",))


def test_a_set_is_taken_from_those_who_have_it(world: World) -> None:
    one = only(search(world, kernels="64,32"))
    tried = by_family(a.subject for a in one.attempts)
    assert tried["wave"] == [WAVE_DEFAULT], "wave knows no such set"
    assert len(tried["sm80"]) > 1
    with pytest.raises(InvalidConfig) as caught:
        search(world, kernels="tuna")
    said = "unknown kernel set 'tuna'; allowed: wave: tune; sm80: fast, wide, tune, all, prog, "
    assert str(caught.value).startswith(said)
    assert str(caught.value).endswith("did you mean tune?")
    with pytest.raises(InvalidConfig, match=r"unknown kernel set 'prog'; allowed: tune$"):
        search(world, kernels="prog", families=("wave",))


# The other commands -----------------------------------------------------------------------------


def test_profile_takes_configs_of_any_family(world: World) -> None:
    forms = [Variant.from_key(s).config for s in (WAVE_BEST, SM80_OTHER)]
    result = profile(forms, world.options(1024), world.progress)
    assert [a.subject for a in result.attempts][2:] == [WAVE_BEST, SM80_OTHER]


def test_bench_and_build_take_the_set_of_every_family_or_of_one(world: World) -> None:
    timed = bench(world.options(1024), world.progress)
    assert set(by_family(a.subject for a in timed.attempts)) == {"ref", "sm80", "wave"}
    timed = bench(world.options(1024, families=("wave",)), world.progress)
    assert set(by_family(a.subject for a in timed.attempts)) == {"ref", "wave"}
    machine = world.options().machine
    report = build("tune", (128,), machine, world.progress, names=("wave",))
    assert {r.request.variant.family for r in report.results} == {"wave"}
    assert {r.request.arch for r in report.results} == {"sm_90a"}
    assert {variant.family for variant, _ in report.rejected} == {"wave"}


def test_failures_of_one_family_do_not_cost_the_other(world: World) -> None:
    world.compiler.refused = dict.fromkeys(WAVE, "no such instruction")
    one = only(search(world))
    failed = [a for a in one.attempts if a.outcome is Outcome.COMPILE_FAILED]
    assert sorted(a.subject for a in failed) == sorted(WAVE)
    assert one.decision.chosen.subject == SM80_OTHER


def test_doctor_tries_a_kernel_of_every_family(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = import_module("fa_tune.tune.machine_check")  # the package's attribute is the function
    monkeypatch.setattr(module, "build_all", lambda *args: world.compiler(*args))
    monkeypatch.setattr(module, "EventsProfiler", lambda: FakeProfiler(method="events"))
    monkeypatch.setattr(module, "ncu_profiler", lambda **_: FakeProfiler())
    checks = {c.name: c for c in doctor(world.options().machine, world.progress)}
    detail = checks["compile and run"].detail
    assert "wave " in detail
    assert "sm80 " in detail


def test_a_head_dimension_that_nothing_runs_names_the_reason_of_each_family(world: World) -> None:
    """Those of other families, whose sets have no config for it, are told besides."""
    configs = families.get("sm80").configs("fast", d_head=100)
    machine = SimpleNamespace(limits=limits((9, 0)), arch="sm_90")
    with pytest.raises(NoUsableVariant) as caught:
        runnable(configs, machine)  # type: ignore[arg-type]
    assert len(families.runnable(machine.limits)) > 1
    for family in families.runnable(machine.limits):
        refused = family.constraints(family.default_config(100, DType.FP16), machine.limits)
        assert f"{family.name}: {refused.reason}" in str(caught.value)
