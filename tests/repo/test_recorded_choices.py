"""The choices of the recordings that come with fa-tune, with every family's own defaults."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fa_tune.commands.views.default_check import check_sentence
from fa_tune.core.arch import limits
from fa_tune.core.paths import profiles_dir
from fa_tune.core.workload import Workload
from fa_tune.lab.default_check import DefaultComparison, compare_recordings
from fa_tune.store.recordings import load_all
from fa_tune.tune.candidates import default_keys


@pytest.fixture(scope="module")
def found() -> list[DefaultComparison]:
    return compare_recordings(profiles_dir())


def test_none_is_slower_than_the_default(found: list[DefaultComparison]) -> None:
    compared = [one for one in found if one.default]
    of_sm90 = {one.workload for one in compared if one.default and one.default.startswith("sm90:")}
    assert len(of_sm90) >= 48
    assert any(not one.is_default for one in compared)
    assert [one.workload.key for one in found if one.slower] == []
    again = [one for one in found if one.confirmed is not None]
    assert again
    assert {(one.source, one.workload.key) for one in again} == set(recorded_tests())
    assert not any(one.is_default or one.slower for one in again)
    assert f"; {len(again)} were compared with it once more" in check_sentence(again)
    assert "; 1 was compared with it once more" in check_sentence(again[:1])


def recorded_tests() -> Iterator[tuple[str, str]]:
    """The recordings and workloads whose choice was held against today's default once more, in a
    process of its own; one that lost is no choice."""
    for recording in load_all(profiles_dir()):
        for key, decided in recording.meta.decided.items():
            test, taken = decided.confirmed, {a.subject for a in recording.attempts}
            capability = recording.meta.device.compute_capability
            own = default_keys(Workload.from_key(key), limits(capability), taken)
            if test is None or test.default != next((d for d in own if d in taken), None):
                continue
            if decided.chosen in ("", test.chosen):  # of old recordings nothing is known
                yield recording.label, key
