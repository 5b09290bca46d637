"""What a tie prefers is known before anything is measured, and the same in every search."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from fa_tune.core.inputs import DEFAULT
from fa_tune.core.model import Attempt, Measurement, Outcome
from fa_tune.core.stats import MARGIN
from fa_tune.core.workload import DType, Workload, benchmark_workload
from fa_tune.search.neighbor_regret import NEVER_SEEN, Neighbour
from fa_tune.store import recordings
from fa_tune.store.recordings import Meta, Recording
from fa_tune.tune.tie_break import TieBreak, recorded_neighbours, tie_break_for
from tests.store.test_recordings import ORIGIN
from tests.tune import fakes
from tests.tune.fakes import H200, FakeProfiler, Stages

A, B, C, D = fakes.keys(4)
HERE = benchmark_workload(4096, 128, DType.FP16)
SHORTER = benchmark_workload(2048, 128, DType.FP16)
LONGER = benchmark_workload(8192, 128, DType.FP16)
FAR = benchmark_workload(256, 128, DType.FP16)


def near(workload: Workload, **regrets: float) -> dict[Workload, Neighbour]:
    names = {"a": A, "b": B, "c": C}
    return {workload: Neighbour({names[n]: r for n, r in regrets.items()})}


def recording(times: dict[Workload, dict[str, float]], name: str = "fast_events") -> Recording:
    attempts = [
        Attempt(s, w.key, Outcome.OK, "", Measurement(s, w.key, "events", (t, t * 1.0001)))
        for w, of in times.items()
        for s, t in of.items()
    ]
    failed = Attempt(D, HERE.key, Outcome.CRASHED, "it did")
    meta = Meta(recordings.SCHEMA, H200, dataclasses.replace(ORIGIN, method="events"))
    return Recording(Path("nvidia_h200") / f"{name}.csv", meta, (*attempts, failed))


def test_what_is_recorded_to_be_good_next_door_comes_first() -> None:
    known = TieBreak(near(SHORTER, a=0.02, b=0.001, c=0.0) | near(LONGER, a=0.0, b=0.0, c=0.03))
    artifacts = {s: fakes.artifact(s) for s in (A, B, C, D)}
    ranks = known.ranks(HERE, artifacts)
    assert [ranks[s][1] for s in (A, B, C, D)] == [20, 1, 30, NEVER_SEEN], "the worst, in steps"
    assert known.order(HERE, artifacts) == (B, A, C, D)
    artifacts = {s: fakes.artifact(s) for s in (A, B)}
    for workload in (FAR, dataclasses.replace(SHORTER, causal=True)):
        known = TieBreak(near(workload, a=0.5, b=0.0))
        assert {rank[:2] for rank in known.ranks(HERE, artifacts).values()} == {(0, 0)}


def test_who_was_near_the_limit_of_a_tie_here_comes_after_all_who_were_not() -> None:
    """However good they are next door; of those who were not, this workload prefers none."""
    known = TieBreak(near(HERE, a=0.0, b=0.0024, c=0.0026) | near(LONGER, a=0.02, b=0.01, c=0.0))
    artifacts = {s: fakes.artifact(s) for s in (A, B, C, D)}
    assert known.order(HERE, artifacts) == (B, A, C, D), "and what was never seen is last"
    assert known.order(LONGER, {s: artifacts[s] for s in (A, B, C)}) == (C, A, B)


@pytest.mark.parametrize(
    ("behind", "margin"), [(0.0, MARGIN), (0.0074, MARGIN), (0.0076, MARGIN / 2), (0.1, MARGIN / 2)]
)
def test_a_default_that_is_recorded_to_be_behind_is_left_for_half_the_margin(
    behind: float, margin: float
) -> None:
    """However far a gain is from where it was recorded, it is not near both limits."""
    known = TieBreak(near(HERE, a=behind, b=0.0) | near(LONGER, a=0.5, b=0.0))
    assert known.margin(HERE, A) == margin
    assert abs(behind - margin) >= 0.24 * MARGIN
    assert known.margin(HERE, None) == MARGIN
    assert known.margin(HERE, D) == MARGIN, "nothing is known of it"
    assert known.margin(SHORTER, A) == MARGIN, "its neighbours do not count"


def test_of_several_recordings_the_one_that_holds_most_of_a_workload_counts() -> None:
    whole = recording({SHORTER: {A: 1.0, B: 2.0, C: 3.0}})
    newer = recording({SHORTER: {A: 2.0, B: 1.0}, LONGER: {A: 2.0, B: 1.0}}, "prog_events")
    found = recorded_neighbours([newer, whole])
    assert set(found) == {SHORTER, LONGER}, "and one that only failed tells nothing"
    assert found[SHORTER].regret(A) == 0.0
    assert found[LONGER].regret(A) == pytest.approx(1.0)


def test_recordings_of_this_gpu_and_method_are_read_and_no_others(tmp_path: Path) -> None:
    events = recording({SHORTER: {A: 1.0, B: 2.0}})
    recordings.save(tmp_path / events.path, events.attempts, {}, events.meta)
    other = dataclasses.replace(
        events.meta,
        device=dataclasses.replace(H200, name="NVIDIA X"),
        provenance=dataclasses.replace(events.meta.provenance, gpu="NVIDIA X"),
    )
    recordings.save(tmp_path / "nvidia_x" / "fast_events.csv", events.attempts, {}, other)
    (tmp_path / "nvidia_x" / "fast_events.csv").write_text("damaged, but of another GPU")
    machine = fakes.machine(tmp_path / "cache", recordings=tmp_path)
    progress = Stages()

    def found(method: str) -> TieBreak:
        selection = fakes.selected(FakeProfiler(method=method))
        session = fakes.session(tmp_path, selection, progress=progress, machine=machine)
        return tie_break_for(session, [HERE])

    assert set(found("events").recorded) == {SHORTER}
    assert found("ncu") == TieBreak()
    assert progress.warnings == []
    path = tmp_path / events.path
    meta = path.with_suffix(recordings.META_SUFFIX)
    meta.write_text(json.dumps({**json.loads(meta.read_text()), "schema": "?"}))
    assert found("events") == TieBreak()
    (warning,) = progress.warnings
    assert warning.startswith("ties are not settled by recordings: ")


def test_recordings_of_the_inputs_asked_for_hide_no_others_of_what_they_do_not_hold(
    tmp_path: Path,
) -> None:
    """As those of decoding, on trained inputs alone, hid all of dense problems."""
    normal = recording({SHORTER: {A: 1.0, B: 2.0}, LONGER: {A: 1.0, B: 2.0}})
    trained = recording({LONGER: {A: 2.0, B: 1.0}, FAR: {A: 1.0, B: 1.0}}, "trained_events")
    trained = dataclasses.replace(
        trained, meta=dataclasses.replace(trained.meta, inputs=str(DEFAULT))
    )
    for one in (normal, trained):
        recordings.save(tmp_path / one.path, one.attempts, {}, one.meta)
    machine = fakes.machine(tmp_path / "cache", recordings=tmp_path)
    selection = fakes.selected(FakeProfiler(method="events"))
    session = fakes.session(tmp_path, selection, machine=machine)
    found = tie_break_for(session, [HERE]).recorded
    assert set(found) == {SHORTER, LONGER, FAR}
    assert found[SHORTER].regret(A) == 0.0
    assert found[LONGER].regret(A) == pytest.approx(1.0), "trained inputs, as asked for"
    other = dataclasses.replace(HERE, dtype=DType.BF16)
    assert set(tie_break_for(session, [other]).recorded) == set()
    assert set(tie_break_for(session, [other, HERE]).recorded) == set(found)
