"""Verification: each kernel once, whatever came of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fa_tune.build import nvrtc
from fa_tune.build.compile import BuildRequest, BuildResult
from fa_tune.core.model import Artifact, Attempt, Outcome, Verdict
from fa_tune.core.options import MeasureOptions, Progress
from fa_tune.tune import build as building
from fa_tune.tune import session as sessions
from fa_tune.tune.fleet import gpu as fleet_gpu
from fa_tune.tune.flow import search as run_search
from fa_tune.tune.session import Machine
from fa_tune.tune.verify import Interrupted, verdict_key, verify_all
from tests.tune import fakes
from tests.tune.conftest import FakeVerifier, World
from tests.tune.fakes import FakeProfiler

FIRST, SECOND = fakes.keys(2)


@pytest.fixture
def verifier(monkeypatch: pytest.MonkeyPatch) -> FakeVerifier:
    verifier = FakeVerifier()
    monkeypatch.setattr(fleet_gpu, "run_items", verifier)
    return verifier


Found = tuple[dict[str, Verdict], dict[str, Attempt]]


def verify(
    folder: Path, *artifacts: Artifact, reuse: bool = True, profiler: FakeProfiler | None = None
) -> Found:
    selection = fakes.selected(profiler or FakeProfiler())
    measure = MeasureOptions(seed=5, item_timeout_s=7.0)
    found = verify_all(fakes.session(folder, selection, measure, reuse=reuse), artifacts)
    return dict(found.verdicts), dict(found.failures)


def test_a_verdict_belongs_to_a_kernel_with_its_traits(
    tmp_path: Path, verifier: FakeVerifier
) -> None:
    plain, ragged = fakes.artifact(FIRST), fakes.artifact(FIRST, "ragged")
    verdicts, failures = verify(tmp_path, plain, ragged)
    assert verdicts == {f"{FIRST} @ plain": fakes.RIGHT, f"{FIRST} @ ragged": fakes.RIGHT}
    assert failures == {}
    assert verdict_key(ragged) == f"{FIRST} @ ragged"


def test_what_the_worker_is_given(tmp_path: Path, verifier: FakeVerifier) -> None:
    verify(tmp_path, fakes.artifact(FIRST, "causal"))
    assert verifier.asked["handler"] == "fa_tune.gpu.jobs.verify:handle"
    assert verifier.asked["shared"] == {
        "device": 0,
        "seed": 5,
        "item_timeout_s": 7.0,
        "thorough": False,
        "inputs": [],
    }
    assert verifier.asked["item_timeout_s"] == 7.0
    assert verifier.asked["items"] == {
        f"{FIRST} @ causal": {
            "subject": FIRST,
            "traits": "causal",
            "cubin": "/nowhere.cubin",
            "symbols": [f"_Z{FIRST}"],
            "arch": "sm_90",
            "workload": "",
        }
    }


def test_nothing_is_verified_twice(tmp_path: Path, verifier: FakeVerifier) -> None:
    verifier.wrong = {SECOND}
    both = [fakes.artifact(FIRST), fakes.artifact(SECOND)]
    first = verify(tmp_path, *both)
    assert not first[0][f"{SECOND} @ plain"].correct
    assert verify(tmp_path, *both, profiler=FakeProfiler(method="events")) == first
    assert len(verifier.verified) == 2


@pytest.mark.parametrize("outcome", [Outcome.CRASHED, Outcome.TIMED_OUT])
def test_a_kernel_that_gave_no_verdict_is_not_run_again(
    tmp_path: Path, verifier: FakeVerifier, outcome: Outcome
) -> None:
    verifier.crashing = {FIRST: (outcome, "boom")}
    first = verify(tmp_path, fakes.artifact(FIRST), fakes.artifact(SECOND))
    assert list(first[0]) == [f"{SECOND} @ plain"]
    failure = first[1][f"{FIRST} @ plain"]
    assert (failure.outcome, failure.reason, failure.measurement) == (outcome, "boom", None)
    verifier.crashing = {}
    assert verify(tmp_path, fakes.artifact(FIRST), fakes.artifact(SECOND)) == first
    assert len(verifier.verified) == 2


def test_on_request_all_is_verified_anew_and_the_new_verdict_counts(
    tmp_path: Path, verifier: FakeVerifier
) -> None:
    verifier.wrong = {FIRST}
    verify(tmp_path, fakes.artifact(FIRST))
    verifier.wrong = set()
    assert verify(tmp_path, fakes.artifact(FIRST), reuse=False)[0][f"{FIRST} @ plain"].correct
    assert verify(tmp_path, fakes.artifact(FIRST))[0][f"{FIRST} @ plain"].correct
    assert len(verifier.verified) == 2


@pytest.mark.parametrize("changed", ["sources", "compiler", "driver"])
def test_a_verdict_depends_on_what_makes_and_runs_the_kernel(
    tmp_path: Path, verifier: FakeVerifier, changed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify(tmp_path, fakes.artifact(FIRST))
    if changed == "sources":
        monkeypatch.setattr(sessions, "kernel_source_identity", lambda *_: "b" * 64)
    elif changed == "compiler":
        monkeypatch.setattr(nvrtc, "version", lambda: "13.1.5")
    else:
        monkeypatch.setattr(fakes, "H200", replace(fakes.H200, driver="590"))
    verify(tmp_path, fakes.artifact(FIRST))
    assert len(verifier.verified) == 2


def test_finished_verdicts_survive_an_interruption(
    tmp_path: Path, verifier: FakeVerifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopping(FakeVerifier):
        def __call__(self, handler, shared, items, **more):  # type: ignore[no-untyped-def]
            yield next(super().__call__(handler, shared, items, **more))
            raise KeyboardInterrupt

    monkeypatch.setattr(fleet_gpu, "run_items", Stopping())
    both = [fakes.artifact(FIRST), fakes.artifact(SECOND)]
    with pytest.raises(Interrupted) as told:
        verify(tmp_path, *both)
    assert list(told.value.found.verdicts) == [f"{FIRST} @ plain"]
    monkeypatch.setattr(fleet_gpu, "run_items", verifier)
    verdicts, _ = verify(tmp_path, *both)
    assert len(verdicts) == 2
    assert verifier.verified == [f"{SECOND} @ plain"]


# While something still compiles -----------------------------------------------------------------


def last_one_late(world: World, said: list[tuple[str, int]]) -> Callable[..., object]:
    """A build whose last kernel is there later than the others; `said` gets how many kernels
    were verified before and after that wait."""

    def build(
        requests: Sequence[BuildRequest],
        machine: Machine,
        progress: Progress,
        meanwhile: Callable[[Sequence[BuildResult]], None],
    ) -> list[BuildResult]:
        results = world.compiler(requests, machine, progress)
        said.append(("before", len(world.verifier.verified)))
        meanwhile(results[:-1])
        said.append(("meanwhile", len(world.verifier.verified)))
        return results

    return build


def test_what_compiled_is_verified_while_the_rest_takes_its_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kernel once; what comes late is verified when it has come."""
    said: list[tuple[str, int]] = []
    monkeypatch.setattr(building, "build_all", last_one_late(world, said))
    result = run_search(world.options(1024), world.progress)
    assert said == [("before", 0), ("meanwhile", 3)]
    assert sorted(world.verifier.verified) == sorted(f"{s} @ plain" for s in fakes.keys(4))
    assert {a.outcome for a in result.attempts} == {Outcome.OK}


def test_a_wrong_one_that_was_found_meanwhile_stays_wrong(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong, crashing = fakes.keys(4)[1:3]
    world.verifier.wrong.add(wrong)
    world.verifier.crashing[crashing] = (Outcome.CRASHED, "illegal address")
    monkeypatch.setattr(building, "build_all", last_one_late(world, []))
    result = run_search(world.options(1024), world.progress)
    outcomes = {a.subject: a.outcome for a in result.attempts}
    assert outcomes[wrong] is Outcome.WRONG_RESULT
    assert outcomes[crashing] is Outcome.CRASHED
