"""When a rule of kernels is over, told with simulated noise."""

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from fa_tune.core import stopping
from fa_tune.core.stats import MARGIN, TIE
from fa_tune.core.stopping import (
    ABANDON,
    DOMINATED,
    MOST,
    SECONDS,
    STAGES,
    StoppingRule,
    StopReason,
    undecided,
)

RUNS = 5
LIMIT = STAGES[-1] * RUNS  # where no seconds are left


def run(
    times: Mapping[str, float],
    *,
    noise: float = 0.0,
    drift: float = 0.0,
    seed: int = 0,
    keep: Sequence[str] = (),
    default: str = "",
    runs: int = RUNS,
    adaptive: bool = True,
    samples: Mapping[str, list[float]] | None = None,
    order: Sequence[str] = (),
    margin: float = MARGIN,
    round_s: float = SECONDS,
) -> tuple[dict[str, list[float]], StoppingRule]:
    """Race kernels of these times; `noise` and `drift` (over the whole rule) are fractions.
    A round takes `round_s`, so that usually no time is left after enough of them."""
    dice = random.Random(seed)
    taken = {name: list((samples or {}).get(name, [])) for name in times}
    rule = StoppingRule(
        taken, runs, adaptive=adaptive, keep=keep, default=default, order=order, margin=margin
    )
    for i in range(1000):
        number, active = rule.next_round(1000.0 + i * round_s)
        if not active:
            return taken, rule
        for name in active:
            assert len(taken[name]) == number, "sample i is of round i"
            level = 1.0 + drift * number / LIMIT
            taken[name].append(times[name] * level * (1.0 + dice.gauss(0.0, noise)))
    raise AssertionError("the rule never ends")


def counts(taken: Mapping[str, list[float]]) -> dict[str, int]:
    return {name: len(samples) for name, samples in taken.items()}


def test_a_clear_order_takes_the_first_rounds_alone() -> None:
    taken, rule = run({"a": 1.0, "b": 1.1, "c": 1.2}, noise=0.002)
    assert counts(taken) == dict.fromkeys("abc", RUNS)
    assert rule.stop_reasons == {
        "a": StopReason.DECIDED,
        "b": StopReason.DOMINATED,
        "c": StopReason.DOMINATED,
    }


def test_who_cannot_be_told_apart_is_measured_to_the_limit() -> None:
    """Between tied and not tied: no number of rounds would decide it."""
    taken, rule = run({"a": 1.0, "b": 1.0 + TIE}, noise=0.02)
    assert counts(taken) == {"a": LIMIT, "b": LIMIT}
    assert set(rule.stop_reasons.values()) == {StopReason.LIMIT}


def test_rounds_are_spent_where_the_order_is_open() -> None:
    times = {"leader": 1.0, "near": 1.004, "far": 1.03, "lost": 1.15, "hopeless": 3.5}
    found = [counts(run(times, noise=0.008, seed=seed)[0]) for seed in range(20)]
    mean = {name: sum(one[name] for one in found) / len(found) for name in times}
    assert mean["leader"] >= mean["near"] > mean["far"] > mean["lost"] >= RUNS
    assert {one["hopeless"] for one in found} == {1}
    assert mean["near"] > 0.7 * LIMIT


@pytest.mark.parametrize("noise", [0.0, 0.001])
def test_a_tie_that_is_certain_needs_no_more_rounds(noise: float) -> None:
    taken, rule = run({"a": 1.0, "b": 1.0005}, noise=noise)
    assert STAGES[1] * RUNS <= max(counts(taken).values()) < LIMIT
    assert set(rule.stop_reasons.values()) == {StopReason.DECIDED}


def test_drift_that_meets_all_alike_decides_nothing() -> None:
    times = {"a": 1.0, "b": 1.001, "c": 1.1}
    taken, rule = run(times, noise=0.001, drift=0.2)
    assert rule.stop_reasons["c"] is StopReason.DOMINATED
    assert rule.stop_reasons["b"] is StopReason.DECIDED
    assert max(counts(taken).values()) <= STAGES[1] * RUNS


def test_late_in_the_race_only_those_stay_who_may_be_tied() -> None:
    rule = run({"a": 1.0, "b": 1.0 + TIE, "c": 1.012}, noise=0.01, seed=3)[1]
    assert rule.stop_reasons["c"] is StopReason.NOT_TIED


def test_the_right_one_leads_in_the_end() -> None:
    """Whatever the seed: one that is 1.5 % faster than the next is never left out."""
    times = {"best": 1.0} | {f"k{i}": 1.015 + i / 100 for i in range(10)}
    for seed in range(50):
        taken, rule = run(times, noise=0.006, seed=seed)
        assert rule.stop_reasons["best"] in (StopReason.DECIDED, StopReason.LIMIT)
        assert len(taken["best"]) == max(counts(taken).values())


def test_whether_the_default_is_beaten_is_part_of_the_choice() -> None:
    """0.99 of the default's time is just the margin: it takes all rounds to tell."""
    times = {"winner": 0.99, "default": 1.0}
    taken, _ = run(times, noise=0.004, keep=["default"], default="default")
    assert counts(taken) == {"winner": LIMIT, "default": LIMIT}
    clear, _ = run({**times, "winner": 0.9}, noise=0.004, keep=["default"], default="default")
    assert counts(clear) == {"winner": RUNS, "default": RUNS}


def test_seconds_buy_rounds_where_the_choice_hangs_on_them() -> None:
    times = {"a": 1.0, "b": 1.0 + TIE, "ref:fa2": 2.0, "other": 2.0, "slow": 1.5}
    taken, rule = run(
        times, noise=0.02, keep=["other"], order=["b", "a", "other", "slow"], round_s=1e-3
    )
    assert counts(taken)["a"] == counts(taken)["b"] == MOST * RUNS
    assert counts(taken)["ref:fa2"] == counts(taken)["other"] == LIMIT, "nothing hangs on them"
    assert rule.stop_reasons["slow"] is StopReason.DOMINATED
    some, _ = run(times, noise=0.02, order=["b", "a"], round_s=SECONDS / 100)
    assert LIMIT < counts(some)["a"] < MOST * RUNS


def test_a_tie_of_those_that_are_not_preferred_takes_no_rounds() -> None:
    """`b` is in doubt, but `a` comes before it and is surely good enough."""
    times = {"leader": 1.0, "a": 1.001, "b": 1.0 + TIE}
    quick, rule = run(times, noise=0.002, order=["a", "b", "leader"])
    assert max(counts(quick).values()) <= 2 * STAGES[1] * RUNS
    assert rule.stop_reasons["b"] in (StopReason.DECIDED, StopReason.NOT_TIED)
    slow, _ = run(times, noise=0.002, order=["b", "a", "leader"], seed=1)
    assert counts(slow)["b"] > counts(quick)["b"]


def test_who_leads_decides_nothing_where_all_are_near() -> None:
    """The choice is the first in order whichever of the others is fastest."""
    times = {"a": 1.001, "b": 1.0, "c": 1.0}
    for seed in range(10):
        taken, rule = run(times, noise=0.002, order=["a", "b", "c"], seed=seed)
        assert set(rule.stop_reasons.values()) <= {StopReason.DECIDED, StopReason.NOT_TIED}
        assert max(counts(taken).values()) < LIMIT


def test_a_default_that_surely_stays_ends_the_race_whatever_is_tied() -> None:
    times = {"default": 1.0, "a": 0.997, "b": 0.997 * (1.0 + TIE)}
    taken, _ = run(times, noise=0.002, keep=["default"], default="default", order=["b", "a"])
    assert max(counts(taken).values()) < LIMIT
    half = {"margin": MARGIN / 2}
    near = {"default": 1.0, "a": 1.0 - MARGIN / 2}
    asked, _ = run(near, noise=0.004, keep=["default"], default="default", **half)
    assert counts(asked)["a"] == LIMIT, "the margin that is asked is the one that is given"
    wide, _ = run(
        {"default": 1.0, "a": 0.9}, noise=0.004, keep=["default"], default="default", margin=0.1
    )
    assert counts(wide)["a"] == LIMIT


def test_whoever_may_beat_the_default_is_asked_about() -> None:
    rounds = [1.0, 1.01, 0.985, 1.02, 0.98]
    samples = {"default": [1.0] * 5, "a": rounds, "b": [1.1] * 5}
    assert undecided(samples, "default", ["a", "b"]) == {"default", "a"}
    assert undecided({"default": [1.0] * 5, "b": [1.1] * 5}, "default") == frozenset()
    assert undecided({"default": [1.0] * 5}, "default") == frozenset()
    assert undecided({}) == frozenset()


def test_a_preferred_one_that_may_be_no_faster_than_the_default_is_asked_about() -> None:
    samples = {"default": [1.0] * 9, "a": [0.97] * 9, "b": [0.97] * 8 + [1.001]}
    assert undecided(samples, "default", ["b", "a"]) == {"a", "b"}


# Each of these lies on a bound exactly.
ON_BOUNDS: list[tuple[dict[str, list[float]], dict[str, Any], set[str]]] = [
    ({"a": [1.0] * 5, "b": [1.0 + TIE] * 5}, {}, set()),
    ({"a": [1.0] * 5, "b": [1.0 + TIE] * 5}, {"early": True}, {"a", "b"}),
    ({"a": [1.0] * 5, "b": [1.0 + TIE] * 3 + [1.02] * 2}, {}, {"a", "b"}),
    ({"a": [1.0 - TIE] * 5, "b": [1.0] * 5}, {"early": True}, {"a"}),
    ({"a": [1.0] * 2, "b": [1.5] * 2}, {}, set()),
    ({"default": [1.0] * 5, "a": [1.0 - MARGIN] * 5}, {"default": "default"}, {"default", "a"}),
]


@pytest.mark.parametrize(("samples", "how", "open_"), ON_BOUNDS)
def test_bounds_belong_to_what_is_tied_and_to_what_is_no_gain(
    samples: dict[str, list[float]], how: dict[str, Any], open_: set[str]
) -> None:
    assert undecided(samples, **how) == open_


def test_a_tied_one_that_is_just_as_slow_as_the_default_is_passed_over() -> None:
    """The default took part in two rounds, in which `even` was as slow."""
    samples = {
        "default": [1.0] * 2,
        "even": [1.0] * 2 + [0.9] * 30,
        "open": [0.9, 0.918] * 16,
        "best": [0.9] * 32,
    }
    assert undecided(samples, "default", ["even", "best", "open"]) == frozenset()
    assert undecided(samples, "default", ["even", "open", "best"]) == {"open", "best"}


def test_at_the_bounds_of_being_left_out_one_stays() -> None:
    rule = run({"a": 1.0, "b": 1.0 + DOMINATED, "c": 1.0 + TIE})[1]
    reasons = StopReason.DECIDED, StopReason.NOT_TIED, StopReason.DECIDED
    assert rule.stop_reasons == dict(zip("abc", reasons, strict=True))


@pytest.mark.parametrize("begun", [0, 7])
def test_looks_become_rarer(monkeypatch: pytest.MonkeyPatch, begun: int) -> None:
    """After five rounds and a fifth more, in fives, up to the most while seconds are left."""
    looks: list[int] = []

    def look(samples: Mapping[str, Sequence[float]], *_: object, **__: object) -> frozenset[str]:
        looks.append(len(samples["a"]))
        return frozenset("ab")

    monkeypatch.setattr(stopping, "undecided", look)
    samples = {name: [1.0] * begun for name in "ab"}
    run({"a": 1.0, "b": 1.0}, samples=samples, round_s=0.0)
    expected = [max(RUNS, begun)]
    while (last := expected[-1]) < MOST * RUNS:
        expected.append(min(max(last + 5, 5 * -(-6 * last // 25)), MOST * RUNS))
    assert looks == expected
    late = next(n for n in expected if n >= LIMIT)
    monkeypatch.setattr(stopping, "SECONDS", float(late - expected[0]))
    taken, _ = run({"a": 1.0, "b": 1.0}, samples=samples, round_s=1.0)
    assert counts(taken)["a"] == expected[expected.index(late) + 1], "they are just not over"


def test_a_default_that_is_not_kept_is_a_candidate_like_others() -> None:
    times = {"a": 1.0 - MARGIN, "default": 1.0}
    assert counts(run(times, default="default")[0])["a"] == RUNS
    assert counts(run(times, keep=["default"], default="default")[0])["a"] > RUNS


@pytest.mark.parametrize(("time", "n"), [(ABANDON, RUNS), (ABANDON * 1.001, 1)])
def test_three_times_the_leader_is_the_end(time: float, n: int) -> None:
    assert counts(run({"leader": 1.0, "slow": time})[0]) == {"leader": RUNS, "slow": n}


def test_a_multiple_of_the_best_is_asked_up_to_the_last_of_the_first_rounds() -> None:
    samples = {"a": [1.0] * 5, "b": [1.0, 1.0, 4.0, 4.0, 4.0]}
    rule = StoppingRule(samples, RUNS)
    rule.next_round()
    assert rule.stop_reasons["b"] is StopReason.ABANDONED


def test_references_and_whom_we_keep_go_on_however_slow() -> None:
    times = {"a": 1.0, "b": 1.0 + TIE, "ref:fa2": 9.0, "default": 9.0, "slow": 9.0}
    taken, rule = run(times, noise=0.02, keep=["default"], default="default")
    assert counts(taken) == {**dict.fromkeys(times, LIMIT), "slow": 1}
    assert rule.stop_reasons["slow"] is StopReason.ABANDONED


def test_a_fast_reference_makes_nobody_a_loser() -> None:
    assert counts(run({"ref:cudnn": 0.1, "a": 1.0, "b": 1.019})[0]) == {
        "ref:cudnn": RUNS,
        "a": RUNS,
        "b": RUNS,
    }


def test_references_alone_and_nobody() -> None:
    assert counts(run({"ref:fa2": 1.0})[0]) == {"ref:fa2": RUNS}
    assert StoppingRule({}, RUNS).next_round() == (0, [])


def test_exactly_that_many_means_that_many_for_all() -> None:
    taken, rule = run({"a": 1.0, "b": 100.0}, runs=7, adaptive=False)
    assert counts(taken) == {"a": 7, "b": 7}
    assert set(rule.stop_reasons.values()) == {StopReason.ENOUGH}


def test_a_repeated_round_is_one_more_for_all_who_are_left() -> None:
    taken: dict[str, list[float]] = {"a": [], "b": []}
    rule = StoppingRule(taken, RUNS)
    for i in range(100):
        _, active = rule.next_round()
        if not active:
            break
        for name in active:
            taken[name].append(1.0 if name == "a" else 1.1)
        if i in (1, 3):
            rule.repeat()
    assert counts(taken) == {"a": RUNS + 2, "b": RUNS + 2}


def test_after_a_worker_that_died_who_lags_comes_first() -> None:
    samples = {"a": [1.0] * 3, "b": [1.0] * 2, "out": [9.0]}
    rule = StoppingRule(samples, RUNS)
    assert rule.stop_reasons == {"out": StopReason.BEFORE}
    assert rule.next_round() == (2, ["b"])
    samples["b"].append(1.0)
    assert rule.next_round() == (3, ["a", "b"])


def test_who_failed_is_forgotten() -> None:
    samples = {"a": [1.0], "b": [2.0]}
    rule = StoppingRule(samples, 1)
    rule.drop("a")
    assert rule.next_round() == (1, [])
    assert rule.stop_reasons == {"b": StopReason.DECIDED}
    rule.drop("b")
    rule.drop("b")
    assert (rule.active, rule.stop_reasons) == ([], {})


def test_one_sample_has_no_interval_and_decides_nothing() -> None:
    taken, _ = run({"a": 1.0, "b": 1.5}, runs=1)
    assert counts(taken)["a"] > 1
    assert not math.isnan(sum(taken["b"]))
