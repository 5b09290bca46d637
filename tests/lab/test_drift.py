"""Chunks whose default is off are repeated; what is off twice is scaled."""

from __future__ import annotations

import pytest

from fa_tune.core.model import Attempt, Measurement, Outcome
from fa_tune.lab.record_space import corrected, default_of, drifted_chunks, time_of

DEFAULT = "sm80:default"


def chunk(default_s: float | None, other: str = "x", other_s: float = 2.0) -> dict[str, Attempt]:
    def attempt(subject: str, time_s: float) -> Attempt:
        found = Measurement(subject, "w", "events", (time_s,) * 3, {}, {})
        return Attempt(subject, "w", Outcome.OK, "", found)

    found = {other: attempt(other, other_s)}
    return found if default_s is None else found | {DEFAULT: attempt(DEFAULT, default_s)}


def test_a_chunk_whose_default_is_off_is_to_be_repeated() -> None:
    chunks = [chunk(1.0), chunk(1.28), chunk(1.01), chunk(0.99), chunk(None)]
    assert drifted_chunks(chunks, DEFAULT) == [1]
    assert drifted_chunks([chunk(None)], DEFAULT) == []
    assert drifted_chunks([chunk(1.5)], DEFAULT) == []
    chunks = [chunk(1.0), chunk(1.28, "y", 2.5), chunk(1.01)]
    kept, adjusted = corrected(chunks, {1: chunk(1.0, "y", 2.0)}, DEFAULT)
    assert adjusted == 0
    assert time_of(kept[1], DEFAULT) == 1.0
    assert time_of(kept[1], "y") == 2.0
    assert kept[0] == chunks[0]
    chunks = [chunk(1.0), chunk(1.05, "y", 2.1), chunk(1.01)]
    kept, adjusted = corrected(chunks, {1: chunk(1.4, "y", 9.0)}, DEFAULT)
    assert adjusted == 0
    assert kept[1] == chunks[1]


def test_what_is_off_by_as_much_again_is_scaled_by_the_default() -> None:
    """As at the power limit: everything in it is slow."""
    chunks = [chunk(1.0), chunk(1.05, "y", 2.1), chunk(1.0)]
    kept, adjusted = corrected(chunks, {1: chunk(1.05, "y", 2.1)}, DEFAULT)
    assert adjusted == 1
    assert time_of(kept[1], DEFAULT) == pytest.approx(1.0)
    assert time_of(kept[1], "y") == pytest.approx(2.0)
    assert kept[1]["y"].measurement is not None
    assert kept[1]["y"].measurement.scaled_by == pytest.approx(1 / 1.05)
    chunks = [chunk(1.2), chunk(1.0), chunk(0.9), chunk(None)]
    assert default_of(chunks, DEFAULT) == {DEFAULT: chunks[1][DEFAULT]}
    assert default_of([chunk(None)], DEFAULT) == {}
