"""What the registry's rule loses on workloads that were taken out of recordings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import pytest

from fa_tune.core.model import Attempt, Measurement, Outcome
from fa_tune.core.workload import DType, Workload
from fa_tune.lab.between import losses_among, losses_of
from fa_tune.store import recordings
from fa_tune.store.recordings import Meta, load_all
from tests.store.test_recordings import ORIGIN
from tests.tune.fakes import H200

A, B, SAFE = (
    f"decode:decode(FP16, 128, 16, 128, 8): {words}"
    for words in ("stages_2", "stages_2+aligned", "aligned")
)


def decode(keys: int, batch: int = 4) -> Workload:
    return Workload(batch, 64, 8, 1, keys, 128, DType.FP16)


def recorded(folder: Path, times: Mapping[Workload, Mapping[str, float]]) -> Path:
    """A folder with a recording of these medians, in microseconds."""
    attempts = []
    for workload, by_subject in times.items():
        for subject, us in by_subject.items():
            samples = tuple(us * 1e-6 * (1 + i / 1e5) for i in range(9))
            found = Measurement(subject, workload.key, "events", samples, relative=samples)
            attempts.append(Attempt(subject, workload.key, Outcome.OK, "", found))
    meta = Meta(recordings.SCHEMA, H200, dataclasses.replace(ORIGIN, method="events"))
    recordings.save(folder / "nvidia_h200" / "decode_events.csv", attempts, {}, meta)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return recorded(
        tmp_path / "profiles",
        {
            decode(1024): {A: 10.0, B: 12.0, SAFE: 10.2},
            decode(4096): {A: 22.0, B: 24.0, SAFE: 20.0},
            decode(16384): {A: 72.0, B: 60.0, SAFE: 61.2},
            Workload(16, 16, 16, 4096, 4096, 128, DType.FP16): {
                "sm90:sm90(FP16, 128, 128x128): pingpong": 6000.0
            },
        },
    )


def test_each_workload_is_asked_for_by_the_others(folder: Path) -> None:
    found, (single,) = losses_of(folder)
    assert [loss.workload for loss in found] == [decode(1024), decode(4096), decode(16384)]
    middle = found[1]
    assert middle.chosen == SAFE.partition(":")[2], "which loses 2 % on both sides"
    assert middle.rule == pytest.approx(0.0)
    assert middle.nearest == pytest.approx(0.1)
    assert (single.problems, single.config) == (3, SAFE.partition(":")[2])
    assert (single.mean, single.worst) == (pytest.approx(0.04 / 3, abs=1e-4), pytest.approx(0.02))


def test_what_is_nearer_than_half_a_doubling_is_taken_out_too(tmp_path: Path) -> None:
    times = {
        decode(4096): {A: 20.0, B: 30.0},
        decode(4100): {A: 20.0, B: 30.0},
        decode(65536): {A: 300.0, B: 200.0},
    }
    found, _ = losses_of(recorded(tmp_path, times))
    assert found[0].rule == pytest.approx(0.5)


def test_what_was_tuned_for_comparison_is_asked_for_by_the_others_alone(tmp_path: Path) -> None:
    grid = recorded(
        tmp_path / "grid",
        {decode(1024): {A: 10.0, B: 12.0}, decode(65536): {A: 300.0, B: 200.0}},
    )
    # Each would be served by the other, which nobody tuned for.
    compared = recorded(
        tmp_path / "between",
        {decode(3000): {A: 18.0, B: 15.0}, decode(6000): {A: 33.0, B: 30.0}},
    )
    found, (single,) = losses_among(load_all(grid), load_all(compared))
    assert [loss.workload for loss in found] == [decode(3000), decode(6000)]
    assert {loss.near for loss in found} == {decode(1024)}
    assert [loss.rule for loss in found] == [pytest.approx(0.2), pytest.approx(0.1)]
    assert single.problems == 2
