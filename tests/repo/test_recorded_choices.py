"""The choices of the recordings that come with fa-tune, with every family's own defaults."""

from __future__ import annotations

import pytest

from fa_tune.commands.views.default_check import check_sentence
from fa_tune.core.paths import profiles_dir
from fa_tune.evaluate.default_check import DefaultComparison, compare_recordings


@pytest.fixture(scope="module")
def found() -> list[DefaultComparison]:
    return compare_recordings(profiles_dir())


def test_none_is_slower_than_the_default(found: list[DefaultComparison]) -> None:
    compared = [one for one in found if one.default]
    of_sm90 = {one.workload for one in compared if one.default and one.default.startswith("sm90:")}
    assert len(of_sm90) >= 48
    assert any(not one.is_default for one in compared)
    assert [one.workload.key for one in found if one.slower] == []


def test_what_was_compared_again_is_counted(found: list[DefaultComparison]) -> None:
    """Of the choices that are not the default, those that the search held against it once more,
    in a process of its own."""
    again = [one for one in found if one.confirmed is not None]
    assert len(again) >= 21
    assert not any(one.is_default or one.slower for one in again)
    assert f"; {len(again)} were compared with it once more" in check_sentence(again)
    assert "; 1 was compared with it once more" in check_sentence(again[:1])
