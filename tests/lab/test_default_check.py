"""Every choice held against the default: in a registry, and in recordings."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from fa_tune.core.comparison import Confirmation
from fa_tune.core.model import Attempt, Measurement, Outcome, Variant
from fa_tune.core.stats import Interval, Ratio
from fa_tune.core.workload import DType, benchmark_workload
from fa_tune.lab.default_check import (
    DefaultComparison,
    compare_recording,
    compare_registry,
)
from fa_tune.store import recordings
from fa_tune.store.recordings import Decided, Meta, Recording
from fa_tune.store.registry.schema import Confirmed, Entry
from tests.commands.test_registry import entry as kept
from tests.store.test_recordings import ORIGIN
from tests.tune import fakes
from tests.tune.fakes import H200

WORKLOAD = benchmark_workload(1024, 128, DType.FP16)
DEFAULT, A, B = fakes.keys(3)


def attempt(
    subject: str,
    time_s: float,
    ratio: float,
    place: int | None = None,
) -> Attempt:
    """Times that say nothing beside ratios that do."""
    samples_s = tuple(time_s * (1 + i / 1e4) for i in range(9))
    relative = tuple(round(ratio * (1 + i / 1e4), 6) for i in range(9))
    found = Measurement(
        subject, WORKLOAD.key, "events", samples_s, relative=relative, preference=place
    )
    return Attempt(subject, WORKLOAD.key, Outcome.OK, "", found)


def recording(attempts: Sequence[Attempt], decided: Decided | None = None) -> Recording:
    meta = Meta(
        recordings.SCHEMA,
        H200,
        dataclasses.replace(ORIGIN, method="events"),
        decided={WORKLOAD.key: decided} if decided is not None else {},
    )
    return Recording(Path("nvidia_h200/fast_events.csv"), meta, tuple(attempts))


def only(found: Iterable[DefaultComparison]) -> DefaultComparison:
    (one,) = found
    return one


def of_one(found: Recording) -> DefaultComparison:
    """The only choice of a recording."""
    return only(compare_recording(found))


def test_a_choice_stands_beside_the_default_with_its_interval() -> None:
    one = of_one(recording([attempt(DEFAULT, 1.0, 1.0), attempt(A, 1.0, 0.9)]))
    assert (one.chosen, one.default, one.workload, one.n) == (A, DEFAULT, WORKLOAD, 9)
    assert one.ratio is not None
    assert one.ratio.value == pytest.approx(0.9)
    assert one.ratio.interval is not None
    assert (one.is_default, one.slower) == (False, False)
    assert (one.gpu, one.method, one.source) == (H200.name, "events", "nvidia_h200/fast_events.csv")
    one = of_one(recording([attempt(DEFAULT, 1.0, 1.0), attempt(A, 1.0, 0.995)]))
    assert one.is_default
    assert one.ratio is None
    assert not one.slower
    one = of_one(recording([attempt(A, 1.0, 0.9), attempt(B, 1.2, 1.1)]))
    assert (one.chosen, one.default, one.ratio, one.slower) == (A, None, None, False)
    assert list(compare_recording(recording([attempt("ref:fa2", 1.0, 0.9)]))) == []


def test_what_the_search_preferred_and_asked_for_counts() -> None:
    table = [attempt(DEFAULT, 1.0, 1.0, 2), attempt(A, 1.0, 0.993, 1), attempt(B, 1.0, 0.994, 0)]
    assert of_one(recording(table)).is_default
    assert of_one(recording(table, Decided(0.01))).is_default
    one = of_one(recording(table, Decided(0.005)))
    assert one.chosen == B
    assert one.ratio is not None
    assert one.ratio.value == pytest.approx(0.994)


@pytest.mark.parametrize(
    ("ratio", "chosen", "slower"), [(0.95, A, False), (1.02, DEFAULT, False), (1.0, A, False)]
)
def test_the_comparison_afterwards_is_shown_or_put_the_default_in_its_place(
    ratio: float, chosen: str, slower: bool
) -> None:
    interval = Interval(ratio - 0.005, ratio + 0.005)
    decided = Decided(0.01, Confirmation(A, DEFAULT, Ratio(ratio, interval), 12))
    table = [attempt(DEFAULT, 1.0, 1.0, 1), attempt(A, 1.0, 0.9, 0)]
    one = of_one(recording(table, decided))
    assert (one.chosen, one.slower) == (chosen, slower)
    assert (one.confirmed is None) == (chosen == DEFAULT)


# Registries -------------------------------------------------------------------------------------


def entry(chosen: str, ratio: Ratio | None, confirmation: Confirmed | None = None) -> Entry:
    return dataclasses.replace(
        kept(),
        chosen=Variant.from_key(chosen),
        default=Variant.from_key(DEFAULT),
        ratio_to_default=ratio,
        confirmation=confirmation,
    )


@pytest.mark.parametrize(
    ("ratio", "afterwards", "slower"),
    [
        (Ratio(0.9, Interval(0.89, 0.91)), None, False),
        (Ratio(1.02, Interval(1.01, 1.03)), None, True),
        (Ratio(1.02, Interval(0.99, 1.03)), None, False),
        (Ratio(0.97, Interval(0.96, 0.98)), Ratio(1.02, Interval(1.015, 1.03)), True),
        (Ratio(0.97, Interval(0.96, 0.98)), Ratio(0.99, Interval(0.98, 1.0)), False),
    ],
)
def test_an_entry_is_held_against_the_default(
    ratio: Ratio, afterwards: Ratio | None, slower: bool
) -> None:
    confirmation = None
    if afterwards is not None:
        parts = Variant.from_key(A), Variant.from_key(DEFAULT), afterwards, 12
        confirmation = Confirmed(*parts, upheld=True)
    one = only(compare_registry([entry(A, ratio, confirmation)]))
    assert one.slower is slower
    assert one.ratio is not None
    assert (one.confirmed is not None) == (afterwards is not None)


def test_an_entry_of_the_default_or_without_it() -> None:
    assert only(compare_registry([entry(DEFAULT, Ratio(1.0, None))])).is_default
    gone = Confirmed(
        Variant.from_key(A),
        Variant.from_key(DEFAULT),
        Ratio(1.02, Interval(1.01, 1.03)),
        12,
        upheld=False,
    )
    kept = only(compare_registry([entry(DEFAULT, Ratio(1.0, None), gone)]))
    assert (kept.confirmed, kept.slower) == (None, False)
    assert only(compare_registry([entry(A, None)])).default is None
