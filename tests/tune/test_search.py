"""The search as a whole: what comes out, what is remembered, what ends it."""

from __future__ import annotations

import dataclasses

import pytest

from fa_tune.core.errors import (
    JournalError,
    NoUsableVariant,
    RegistryError,
    StorageError,
    ToolMissing,
)
from fa_tune.core.model import Attempt, Outcome, Variant
from fa_tune.core.workload import DType, Workload
from fa_tune.search.decide import Rule
from fa_tune.store.registry import file as store
from fa_tune.store.table.read_csv import parse_rows
from fa_tune.tune import flow, profilers
from fa_tune.tune.outputs import Recorder
from fa_tune.tune.results import SearchResult
from tests.tune import fakes
from tests.tune.conftest import World, only, search
from tests.tune.fakes import FakeProfiler, Stages

DEFAULT, FAST, SLOW, OTHER = fakes.keys(4)
TIMES = {DEFAULT: 2e-3, FAST: 1e-3, SLOW: 3e-3, OTHER: 4e-3, "ref:fa2": 1.5e-3, "ref:cudnn": 8e-4}


def known_times(subject: str, _: Workload) -> float:
    return TIMES[subject]


@pytest.fixture
def world(world: World) -> World:
    world.profiler = FakeProfiler(known_times)
    return world


def again(world: World) -> None:
    """The same machine, another day."""
    world.profiler = FakeProfiler(known_times)
    world.verifier.verified.clear()
    world.compiler.requests.clear()
    world.progress = Stages()


def outcomes(result: SearchResult) -> dict[str, Outcome]:
    return {a.subject: a.outcome for a in result.attempts}


# What comes out ---------------------------------------------------------------------------------


def test_the_fastest_is_found_and_kept(world: World) -> None:
    world.profiler.warnings = ("two metrics are missing",)
    result = search(world, 1024)
    assert result.warnings == world.profiler.warnings
    one = only(result)
    assert one.decision.chosen.subject == FAST
    assert one.decision.rule is Rule.CLEAR_WINNER
    assert one.decision.default == DEFAULT
    assert outcomes(result) == dict.fromkeys(TIMES, Outcome.OK)
    (entry,) = store.load(world.registry).entries
    assert entry.chosen.key == FAST
    assert entry.verdict.correct
    assert result.registry == world.registry
    assert result.method == "ncu"
    assert result.device == fakes.H200
    assert (result.measured, result.reused) == (10, 0), "six once, the finalists once more"
    assert world.progress.notes == [result.source]


def test_an_exact_choice_is_among_exact_configs_and_replaces_no_fast_one(world: World) -> None:
    exact_default = DEFAULT.replace("+rescale_8", "")
    times = {**TIMES, DEFAULT: 0.5e-3, exact_default: 2e-3}
    world.profiler = FakeProfiler(lambda subject, _: times[subject])
    assert only(search(world, 1024)).decision.chosen.subject == DEFAULT
    found = only(search(world, 1024, common={"accuracy": "exact"}))
    assert found.decision.default == exact_default
    assert {s.subject for s in found.decision.standings} == {exact_default, FAST, SLOW, OTHER}
    chosen = {e.workload.accuracy: e.chosen.key for e in store.load(world.registry).entries}
    assert chosen == {"fast": DEFAULT, "exact": FAST}


def test_a_kernel_is_compiled_and_verified_once_for_all_workloads(world: World) -> None:
    search(world, 512, 1024, 2048)
    assert len(world.compiler.requests) == 4
    assert len(world.verifier.verified) == 4


def test_a_ragged_length_is_other_code(world: World) -> None:
    """1000 is no multiple of a block, so those kernels need bounds that the others leave out."""
    result = search(world, 1024, 1000)
    assert sorted({r.traits for r in world.compiler.requests}) == ["plain", "ragged"]
    assert len(world.verifier.verified) == 8
    assert sorted(e.traits for e in store.load(world.registry).entries) == ["plain", "ragged"]
    assert all(r.decision for r in result.results)


def test_a_config_is_tried_only_on_its_own_dtype(world: World) -> None:
    world.configs = [*fakes.configs(2), *fakes.configs(2, DType.BF16)]
    world.profiler = FakeProfiler()
    result = search(world, 1024, dtypes=(DType.FP16, DType.BF16))
    for one in result.results:
        own = [a.subject for a in one.attempts if not a.subject.startswith("ref:")]
        assert own == fakes.keys(2, one.workload.dtype)


def test_a_short_form_brings_its_dtype_and_head_dimension(world: World) -> None:
    world.configs = fakes.configs(1, DType.BF16)
    world.profiler = FakeProfiler()
    result = search(world, 1024, kernels=world.configs[0], dtypes=(DType.FP16,), d_heads=(64,))
    workload = only(result).workload
    assert (workload.dtype, workload.d_head) == (DType.BF16, 128)
    assert outcomes(result)[fakes.keys(1, DType.BF16)[0]] is Outcome.OK


def test_what_cannot_run_is_listed_with_its_reason(world: World) -> None:
    too_big = fakes.default_config(B_c=256).short_form()
    world.configs = [*world.configs, too_big]
    world.device = dataclasses.replace(fakes.H200, compute_capability=(8, 6))
    result = search(world, 1024)
    ((variant, reason),) = (r for r in result.rejected if r[0].config == too_big)
    assert variant == Variant("sm80", too_big)
    assert reason.constraint == "smem_fits"
    assert variant.key not in outcomes(result)
    assert only(result).decision is not None


# What goes wrong with one -----------------------------------------------------------------------


def test_a_wrong_kernel_is_never_timed(world: World) -> None:
    world.verifier.wrong = {FAST}
    result = search(world)
    (wrong,) = (a for a in result.attempts if a.subject == FAST)
    assert (wrong.outcome, wrong.measurement) == (Outcome.WRONG_RESULT, None)
    assert wrong.reason == fakes.WRONG.reason
    assert FAST not in [s for s, _, _ in world.profiler.measured]
    assert only(result).decision.chosen.subject == DEFAULT


@pytest.mark.parametrize("outcome", [Outcome.CRASHED, Outcome.TIMED_OUT])
def test_a_kernel_that_kills_its_worker_is_never_run_again(world: World, outcome: Outcome) -> None:
    world.verifier.crashing = {FAST: (outcome, "an illegal address")}
    assert outcomes(search(world))[FAST] is outcome
    again(world)
    result = search(world)
    (crashed,) = (a for a in result.attempts if a.subject == FAST)
    assert crashed == Attempt(FAST, only(result).workload.key, outcome, "an illegal address")
    assert world.verifier.verified == []
    assert world.profiler.plans == []


def test_a_kernel_that_does_not_compile_is_an_attempt_with_its_reason(world: World) -> None:
    world.compiler.refused = {FAST: "ptxas ran out of registers"}
    result = search(world, 1024, 2048)
    failed = [a for a in result.attempts if a.subject == FAST]
    assert [a.outcome for a in failed] == [Outcome.COMPILE_FAILED] * 2
    assert {a.reason for a in failed} == {"ptxas ran out of registers"}
    assert f"{FAST} @ plain" not in world.verifier.verified


def test_one_workload_that_fails_does_not_cost_the_others(world: World) -> None:
    world.verifier.wrong_traits = {"ragged"}
    bad, good = search(world, 1000, 1024).results
    assert bad.decision is None
    assert bad.problem == fakes.WRONG.reason
    assert good.decision is not None
    assert [e.workload for e in store.load(world.registry).entries] == [good.workload]


@pytest.mark.parametrize("what", ["csv", "record"])
def test_a_table_that_cannot_be_written_after_all_costs_no_entry(
    world: World, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The disk is full."""

    def full(*_: object) -> None:
        raise StorageError("no space left")

    monkeypatch.setattr(flow, "save_csv", full)
    monkeypatch.setattr(Recorder, "finish", full)
    with pytest.raises(StorageError, match="no space left"):
        search(world, 1024, **{what: world.folder / "out"})
    (entry,) = store.load(world.registry).entries
    assert entry.chosen.key == FAST


# What ends it -----------------------------------------------------------------------------------


def test_nothing_usable_is_said_with_the_reason_and_the_table_is_kept(world: World) -> None:
    world.verifier.wrong = {DEFAULT, FAST, SLOW, OTHER}
    path = world.folder / "table.csv"
    with pytest.raises(NoUsableVariant, match=r"error 0.5 exceeds 0.0022") as caught:
        search(world, 1024, 2048, csv=path)
    assert caught.value.exit_status == 4
    assert str(caught.value).count("exceeds") == 1, "once for all workloads"
    assert len(parse_rows(path.read_text("utf-8"), str(path))) == 12
    assert not world.registry.exists()


def test_a_set_of_which_nothing_can_run(world: World) -> None:
    world.configs = [fakes.default_config(B_c=512).short_form()]
    with pytest.raises(NoUsableVariant, match=r"^the config cannot run on sm_90: needs"):
        search(world)
    assert world.compiler.requests == []


@pytest.mark.parametrize(
    ("damaged", "error", "said"),
    [
        ("file", StorageError, "file is not a folder"),
        ("cache/journal.sqlite", JournalError, "journal.sqlite: "),
        ("registry.json", RegistryError, "not JSON"),
    ],
)
def test_what_cannot_be_read_or_written_is_found_before_any_work(
    world: World, damaged: str, error: type[Exception], said: str
) -> None:
    path = world.folder / damaged
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"garbage" * 1000)
    registry = path / "registry.json" if damaged == "file" else world.registry
    with pytest.raises(error, match=said):
        search(world, registry=registry)
    assert path.read_bytes() == b"garbage" * 1000
    assert world.compiler.requests == []
    assert world.profiler.plans == []


def test_ncu_that_turns_out_unable_is_replaced_by_events_if_the_choice_was_ours(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forbidden counters show only at the first launch, maybe after another day's good ones."""
    search(world, 512)
    events = FakeProfiler(known_times, method="events", default_runs=5)
    monkeypatch.setattr(profilers, "make_profiler", lambda *_: events)
    world.profiler = FakeProfiler(error=ToolMissing("counters are restricted"))
    result = search(world, 512, 1024)
    assert world.progress.warnings == ["counters are restricted; timing with CUDA events instead"]
    assert result.method == "events"
    methods = {a.measurement.method for a in result.attempts if a.measurement}
    assert methods == {"events"}, "what ncu had measured is not mixed in"
    assert len(events.measured) == 12
    assert {e.method for e in store.load(world.registry).entries} == {"ncu", "events"}


def test_ncu_asked_for_by_name_is_not_replaced(world: World) -> None:
    world.profiler = FakeProfiler(error=ToolMissing("counters are restricted"))
    with pytest.raises(ToolMissing, match="counters are restricted") as caught:
        search(world, profiler="ncu")
    assert caught.value.exit_status == 3


# What is remembered -----------------------------------------------------------------------------


def test_a_second_search_measures_and_verifies_nothing(world: World) -> None:
    first = search(world, 1024, 2048)
    before = store.load(world.registry)
    again(world)
    second = search(world, 1024, 2048)
    assert second.results == first.results
    assert (second.measured, second.reused) == (0, 20)
    assert world.verifier.verified == []
    assert world.profiler.plans == []
    after = store.load(world.registry)
    assert [_undated(e) for e in after.entries] == [_undated(e) for e in before.entries]
    again(world)
    fresh = search(world, 1024, resume=False)
    assert (fresh.measured, fresh.reused, len(world.verifier.verified)) == (10, 0, 4)


def _undated(entry: object) -> object:
    origin = dataclasses.replace(entry.provenance, recorded_at="2026-01-01")  # type: ignore[attr-defined]
    return dataclasses.replace(entry, provenance=origin)  # type: ignore[type-var]
