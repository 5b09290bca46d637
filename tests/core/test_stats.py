"""Medians, bootstrap intervals and paired ratios, against invented samples."""

import math
import random
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_tune.core.stats import (
    Interval,
    Ratio,
    is_tied,
    median,
    median_bounds,
    median_interval,
    paired_ratio,
)

durations = st.floats(min_value=1e-6, max_value=10.0)
samples = st.lists(durations, min_size=1, max_size=40)


def test_the_median_is_the_middle_or_the_mean_of_the_two() -> None:
    assert median([3.0, 1.0, 2.0]) == 2.0
    assert median([4.0, 1.0, 2.0, 3.0]) == 2.5
    assert median([7.0]) == 7.0


def test_no_samples_have_no_statistics() -> None:
    with pytest.raises(ValueError, match="no samples"):
        median([])
    with pytest.raises(ValueError, match="no samples"):
        median_interval([])
    with pytest.raises(ValueError, match="no samples"):
        paired_ratio([], [1.0])


def test_a_single_sample_has_no_interval() -> None:
    assert median_interval([1.0]) is None
    assert paired_ratio([3.0], [2.0]).interval is None
    assert paired_ratio([3.0], [2.0]).value == 1.5


@given(samples.filter(lambda s: len(s) > 1))
def test_the_interval_holds_the_median_and_lies_within_the_samples(values: list[float]) -> None:
    interval = median_interval(values)
    assert min(values) <= interval.low <= median(values) <= interval.high <= max(values)


@given(samples.filter(lambda s: len(s) > 1), st.randoms(use_true_random=False))
def test_the_interval_depends_on_the_values_alone(
    values: list[float], shuffler: random.Random
) -> None:
    shuffled = values.copy()
    shuffler.shuffle(shuffled)
    assert median_interval(values) == median_interval(shuffled)


@pytest.mark.parametrize("seed", [3, 20240229])
def test_the_interval_is_of_the_percentiles_of_resampled_medians(seed: int) -> None:
    rng = random.Random(1)
    values = sorted(rng.gauss(1.0, 0.1) for _ in range(24))
    draws = np.random.default_rng(seed).integers(0, 24, size=(2000, 24))
    medians = sorted(statistics.median(values[i] for i in draw) for draw in draws.tolist())
    steps = statistics.quantiles(medians, n=40, method="inclusive")
    expected = pytest.approx((steps[0], steps[-1]), rel=1e-12)
    assert median_interval(values, seed=seed) == expected
    assert paired_ratio(values, [1.0] * 24, seed=seed).interval == expected


def test_ends_of_an_interval_and_of_a_tie_are_in_it() -> None:
    assert [Interval(1.0, 2.0).contains(value) for value in (0.99, 1.0, 2.0, 2.01)] == [
        *(False, True, True, False)
    ]
    ties = [is_tied(Ratio(value, None), tie=0.25) for value in (0.74, 0.75, 1.25, 1.26)]
    assert ties == [False, True, True, False]


def test_the_interval_covers_the_true_median_about_as_often_as_it_says() -> None:
    rng = random.Random(5)
    intervals = [median_interval([rng.gauss(1.0, 0.1) for _ in range(25)]) for _ in range(400)]
    covered = statistics.fmean(i is not None and i.contains(1.0) for i in intervals)
    assert 0.90 <= covered <= 0.99


def test_few_samples_do_not_pretend_to_be_exact() -> None:
    assert median_interval([1.0, 1.1]) == Interval(1.0, 1.1)
    assert median_interval([1.0, 1.05, 1.1]) == Interval(1.0, 1.1)


def test_pairing_removes_a_drift_that_hits_both() -> None:
    drift = [1.0 + 0.02 * i for i in range(10)]
    ratio = paired_ratio([1.01e-3 * d for d in drift], [1e-3 * d for d in drift])
    assert ratio.interval is not None
    assert ratio.value == pytest.approx(1.01)
    assert ratio.interval.low == pytest.approx(1.01)
    assert ratio.interval.high == pytest.approx(1.01)


def test_only_rounds_that_both_took_part_in_are_compared() -> None:
    ratio = paired_ratio([2.0, 2.0], [1.0, 1.0, 9.0, 9.0, 9.0])
    assert ratio.value == 2.0
    assert ratio.interval == Interval(2.0, 2.0)


@given(samples, samples)
def test_a_ratio_lies_in_its_interval(a: list[float], b: list[float]) -> None:
    ratio = paired_ratio(a, b)
    assert (ratio.interval is None) == (min(len(a), len(b)) == 1)
    assert ratio.interval is None or ratio.interval.contains(ratio.value)


@given(samples)
def test_a_measurement_against_itself_is_one(values: list[float]) -> None:
    ratio = paired_ratio(values, values)
    assert ratio.value == 1.0
    assert ratio.interval in (None, Interval(1.0, 1.0))


@pytest.mark.parametrize(("a", "b"), [([0.0], [1.0]), ([1.0], [0.0]), ([1.0, -1.0], [1.0])])
def test_a_duration_that_is_not_positive_has_no_ratio(a: list[float], b: list[float]) -> None:
    with pytest.raises(ValueError, match="positive"):
        paired_ratio(a, b)


@pytest.mark.parametrize(("n", "confidence"), [(10, 0.997), (15, 0.997), (40, 0.997), (200, 0.95)])
def test_bounds_hold_the_median_as_often_as_they_say(n: int, confidence: float) -> None:
    """Of any distribution: here a skewed one, whose median is ln 2."""
    dice = random.Random(f"{n} {confidence}")
    held = 0
    for _ in range(2000):
        found = median_bounds([dice.expovariate(1.0) for _ in range(n)], confidence=confidence)
        held += found.contains(math.log(2.0))
    assert held / 2000 >= confidence - 0.003


def test_of_few_samples_the_bounds_are_wider_than_what_was_seen() -> None:
    assert median_bounds([3.0, 1.0, 2.0]) == (0.0, 4.0)
    assert median_bounds([1.0]) == (1.0, 1.0)
    dice = random.Random(5)
    held = sum(
        median_bounds([dice.gauss(1.0, 0.1) for _ in range(5)]).contains(1.0) for _ in range(4000)
    )
    assert held / 4000 >= 0.985
    with pytest.raises(ValueError, match="no samples"):
        median_bounds([])


def test_more_samples_give_narrower_bounds() -> None:
    dice = random.Random(6)
    samples = [dice.gauss(1.0, 0.1) for _ in range(500)]
    widths = [b.high - b.low for b in (median_bounds(samples[:n]) for n in (5, 20, 100, 500))]
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < widths[0] / 5
