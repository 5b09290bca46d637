"""When a proof is one: simulated programs, whose true gain is known."""

from __future__ import annotations

import random

import pytest

from fa_tune.core.stats import MARGIN
from fa_tune.store.capture.schema import Capture, Problem, Served, Usage
from fa_tune.store.proof import (
    FEWEST_PAIRS,
    Pair,
    Verdict,
    coverage_of,
    time_ratio,
    verdict,
)

SLOW_DRIFT = 0.002  # of each run, which pairs cancel out


def _pairs(true: float, noise: float, n: int, seed: int) -> list[Pair]:
    """Of a program whose time with ours is `true` times that without, on a clock that drifts."""
    dice = random.Random(seed)

    def run(i: int, factor: float) -> float:
        return factor * (1 + SLOW_DRIFT * i) * dice.lognormvariate(0, noise)

    return [Pair(run(i, true), run(i, 1.0), ours_first=i % 2 == 0) for i in range(n)]


def _first(true: float, noise: float, seed: int, *, most: int = 60) -> Verdict:
    """What is said as soon as anything is."""
    pairs = _pairs(true, noise, most, seed)
    said = (verdict(pairs[:n], higher_is_better=False) for n in range(most + 1))
    return next((v for v in said if v is not Verdict.OPEN), Verdict.OPEN)


@pytest.mark.parametrize("true", [0.7, 0.9, 1.1, 1.4])
def test_a_clear_difference_is_found(true: float) -> None:
    wanted = Verdict.FASTER if true < 1 else {Verdict.SLOWER, Verdict.NO_GAIN}
    for seed in range(50):
        assert _first(true, 0.005, seed) in ({wanted} if true < 1 else wanted)


def test_no_difference_is_seldom_taken_for_a_gain() -> None:
    found = [_first(1.0, 0.01, seed) for seed in range(200)]
    assert found.count(Verdict.FASTER) <= 10
    assert found.count(Verdict.NO_GAIN) >= 100


def test_few_pairs_say_nothing() -> None:
    pairs = _pairs(0.5, 0.0, FEWEST_PAIRS, 0)
    assert verdict(pairs, higher_is_better=False) is Verdict.FASTER
    assert verdict(pairs[:-1], higher_is_better=False) is Verdict.OPEN
    assert time_ratio([], higher_is_better=False) is None
    found = [_first(0.97, 0.3, seed, most=12) for seed in range(100)]
    assert found.count(Verdict.OPEN) >= 60
    pairs = _pairs(1 - MARGIN / 2, 0.0002, 30, 2)
    assert verdict(pairs, higher_is_better=False) in (Verdict.FASTER, Verdict.NO_GAIN)


def test_a_rate_is_the_inverse_of_a_time() -> None:
    pairs = _pairs(0.8, 0.01, 20, 1)
    rates = [Pair(1 / p.ours, 1 / p.torchs, p.ours_first) for p in pairs]
    times, of_rates = (
        time_ratio(pairs, higher_is_better=False),
        time_ratio(rates, higher_is_better=True),
    )
    assert times is not None
    assert of_rates is not None
    assert times.value == pytest.approx(of_rates.value)
    assert verdict(rates, higher_is_better=True) is Verdict.FASTER
    assert verdict(pairs, higher_is_better=True) is not Verdict.FASTER


def _usage(served: Served, calls: int, call_s: float | None, heads: int = 8) -> Usage:
    sizes = {"batch": 1, "heads": heads, "kv_heads": 8, "seq_len_q": 64, "seq_len_kv": 64}
    problem = Problem(
        op="forward", api="sdpa", kind="dense", device="cpu", dtype="bfloat16", layout="bhsd",
        d_head=64, d_head_v=64, **sizes,
    )  # fmt: skip
    return Usage(problem, served, calls, timed=1 if call_s else 0, call_s=call_s)


def test_coverage_counts_time_by_what_served_it() -> None:
    exact = Served("fa_tune", "sm90:a", "exact", "r")
    usages = (
        _usage(exact, 10, 0.02),
        _usage(exact, 5, 0.04, heads=16),
        _usage(Served("fa_tune", "sm90:b", "default"), 10, 0.03),
        _usage(Served("math", why="a mask"), 1, 0.3),
        _usage(Served("cudnn"), 7, None),
    )
    capture = Capture(
        "fa-tune-capture-1", ("x",), "2026-01-01T00:00:00+00:00", 1.0, 0, (), usages, ("unseen",)
    )
    found = coverage_of(capture)
    assert found.attention_s == pytest.approx(1.0)
    assert found.tuned == pytest.approx(0.4)
    assert [round(part.share, 6) for part in found.shares] == [0.4, 0.3, 0.3, 0.0]
    assert found.shares[0].runs == 15
    assert found.notes == ("unseen",)
    usages = (_usage(Served("cpu"), 3, None),)
    capture = Capture("fa-tune-capture-1", (), "2026-01-01T00:00:00+00:00", 1.0, 0, (), usages)
    assert [part.share for part in coverage_of(capture).shares] == [0.0]
