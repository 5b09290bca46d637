"""Forward and backward passes: each is searched among its own families, side by side in one
registry and one folder of recordings."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from fa_tune import families
from fa_tune.core import hooks
from fa_tune.core.arch import limits
from fa_tune.core.errors import InvalidConfig, NoUsableVariant
from fa_tune.core.model import Variant, is_reference
from fa_tune.core.options import WorkloadOptions
from fa_tune.core.workload import DType, Workload
from fa_tune.families.sm90_bwd.family import Sm90BackwardFamily
from fa_tune.operations.backward.spec import backward_of
from fa_tune.store import recordings
from fa_tune.store.registry import file as store
from fa_tune.store.registry.lookup import NoEntry, Target, find_match
from fa_tune.tune.results import SearchResult
from fa_tune.tune.single import profile, run, verify
from tests.tune.conftest import World, only
from tests.tune.fakes import H200, FakeProfiler
from tests.tune.two_families.conftest import search

NAME = Sm90BackwardFamily.name
HOOK = "__device__ float score_hook(float s, int, int, int, int) { return -s; }"
SEARCHED = backward_of(Workload(16, 16, 16, 1024, 1024, 128, DType.FP16))
BACKWARD = {"kernels": "fast", "common": {"op": "backward"}, "dtypes": (DType.FP16,)}


@pytest.fixture
def world(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    family = Sm90BackwardFamily()
    monkeypatch.setitem(families._FAMILIES, NAME, family)
    default = families.variant(family.default_for(SEARCHED, limits((9, 0)))).key

    def time(subject: str, _: Workload) -> float:
        return 1e-3 * (2.0 if subject == default else 3.0 if is_reference(subject) else 1.0)

    world.profiler = FakeProfiler(time)
    return world


def tried(result: SearchResult) -> set[str]:
    """The families of what was measured."""
    subjects = (a.subject for a in result.attempts if not is_reference(a.subject))
    return {Variant.from_key(subject).family for subject in subjects}


def config_of(world: World, **knobs: Any) -> str:
    config = families.get(NAME).default_for(SEARCHED, limits((9, 0)))
    return str(dataclasses.replace(config, **knobs))  # type: ignore[type-var]


def test_each_operation_has_its_families_default_and_entry(world: World) -> None:
    backward = search(world, **BACKWARD)
    forward = search(world, kernels="tune")
    assert tried(backward) == {NAME}
    assert NAME not in tried(forward)
    one = only(backward)
    assert one.decision is not None
    assert one.decision.default == Variant(NAME, config_of(world)).key
    assert one.workload == backward_of(only(forward).workload)
    assert {a.subject for a in one.attempts} > {"ref:fa2", "ref:cudnn"}
    kept = {e.workload.op: e for e in store.load(world.registry).entries}
    assert set(kept) == {"forward", "backward"}
    assert kept["backward"].chosen.family == NAME
    rate = kept["backward"].tflops * kept["backward"].median_s
    assert rate == pytest.approx(2.5 * kept["forward"].tflops * kept["forward"].median_s)


def test_the_choice_is_confirmed_as_a_backward_pass(world: World) -> None:
    one = only(search(world, **BACKWARD))
    (asked,) = world.confirmer.asked
    assert asked["workload"] == one.workload.key
    assert one.confirmation is not None
    assert one.confirmation.upheld


def test_a_lookup_finds_entries_of_its_operation_alone(world: World) -> None:
    done = only(search(world, **BACKWARD)).workload
    kept, here = store.load(world.registry), Target(H200.name)
    near = dataclasses.replace(done, seq_len_q=2048, seq_len_kv=2048)
    found = find_match(kept, here, near)
    assert not isinstance(found, NoEntry)
    assert found.entry.workload == done
    missing = find_match(kept, here, dataclasses.replace(near, op="forward"))
    assert isinstance(missing, NoEntry)
    assert "backward" in missing.reason


def test_recordings_of_both_stand_side_by_side(world: World, tmp_path: Path) -> None:
    search(world, **BACKWARD, record=tmp_path)
    search(world, kernels="fast", families=("sm80",), record=tmp_path)
    ops = {
        path.stem: {Workload.from_key(a.workload).op for a in recordings.load(path).attempts}
        for path in tmp_path.rglob("*.csv")
    }
    assert ops == {
        "backward_fast_trained_ncu": {"backward"},
        "fast_trained_ncu": {"forward"},
    }


def test_an_entry_is_not_for_another_operation(world: World) -> None:
    search(world, **BACKWARD)
    (entry,) = store.load(world.registry).entries
    with pytest.raises(ValueError, match="is not for"):
        dataclasses.replace(entry, workload=dataclasses.replace(entry.workload, op="forward"))


def test_a_config_implies_its_operation(world: World) -> None:
    options = world.options(1024, kernels="")
    result = profile([config_of(world), config_of(world, turns=False)], options, world.progress)
    keys = {attempt.workload for attempt in result.attempts}
    assert keys == {"backward_b16_h16_kv16_q1024_k1024_d128_fp16_full"}
    assert only(search(world, kernels=config_of(world))).workload.op == "backward"
    result, report = run(config_of(world), options, 3, world.progress)
    assert {attempt.workload for attempt in result.attempts} == keys
    assert len(report.verdicts) == 2, "with whole blocks, and ragged"


def test_both_operations_are_measured_apart_in_one_call(world: World) -> None:
    forward = str(families.get("sm80").default_config(128, DType.FP16))
    result = profile([config_of(world), forward], world.options(1024), world.progress)
    by_op = {Workload.from_key(a.workload).op for a in result.attempts}
    assert by_op == {"forward", "backward"}
    for attempt in result.attempts:
        if not is_reference(attempt.subject):
            of_family = families.get(Variant.from_key(attempt.subject).family).operation
            assert Workload.from_key(attempt.workload).op == of_family


def test_a_set_is_verified_on_its_operation(world: World) -> None:
    workloads = WorkloadOptions(d_heads=(64,), masks=("causal",), common={"op": "backward"})
    report = verify("fast", workloads, world.options().machine, world.progress)
    assert report.verdicts
    assert {key.partition(":")[0] for key in report.verdicts} == {NAME}
    assert all("causal" in key for key in report.verdicts)


def test_what_no_family_of_the_operation_computes_is_refused(world: World) -> None:
    common = {"op": "backward", "score_hook": hooks.register(HOOK)}
    with pytest.raises(NoUsableVariant, match="no family of kernels on sm_90 computes backward_"):
        search(world, **{**BACKWARD, "common": common})
    with pytest.raises(NoUsableVariant, match="no family of backward kernels runs on sm_80"):
        search(world, **BACKWARD, arch="sm_80")
    family, config = families.get("sm80"), families.get("sm80").default_config(128, DType.FP16)
    workload = Workload.from_key("backward_b1_h1_kv1_q64_k64_d128_fp16_full")
    assert not families.fits(config, workload)
    with pytest.raises(InvalidConfig, match="do not compute"):
        family.traits(config, workload)
