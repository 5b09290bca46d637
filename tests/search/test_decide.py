"""Deciding: leader, ties, the fixed rule, the default's margin.  Invented times throughout."""

from __future__ import annotations

import dataclasses
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fa_tune.core.comparison import Confirmation, OnInputs
from fa_tune.core.errors import FaTuneError, InvalidConfig, NoUsableVariant
from fa_tune.core.model import Measurement
from fa_tune.core.stats import Interval, Ratio, is_tied, paired_ratio
from fa_tune.search.decide import (
    Decision,
    Rule,
    beats,
    contenders,
    decide,
    faster_reference,
    is_near,
    keep_default,
    sound_choice,
)

W = "b16_h16_kv16_q4096_k4096_d128_fp16_full"
DEFAULT = "sm80:default"


def m(subject: str, *samples_s: float, method: str = "events", workload: str = W) -> Measurement:
    return Measurement(subject, workload, method, samples_s)


def steady(subject: str, time: float, n: int = 15, noise: float = 2e-4) -> Measurement:
    """Samples that scatter by `noise` around `time`, the same for the same subject."""
    rng = random.Random(subject)
    return m(subject, *(time * (1.0 + rng.uniform(-noise, noise)) for _ in range(n)))


def check(decision: Decision, chosen: str, rule: Rule) -> None:
    assert (decision.chosen.subject, decision.rule) == (chosen, rule), decision.sentence
    assert decision.method == "events"
    assert chosen in decision.sentence
    assert decision.sentence.endswith(".")
    assert "\n" not in decision.sentence


# Who wins


def test_the_clear_winner_is_chosen() -> None:
    d = decide([steady("a", 1.0), steady(DEFAULT, 1.1), steady("c", 1.2)], DEFAULT)
    check(d, "a", Rule.CLEAR_WINNER)
    assert d.leader == d.chosen
    assert d.tie_set == ("a",)
    assert d.to_default is not None
    assert d.to_default.value == pytest.approx(1 / 1.1, rel=1e-3)
    assert d.to_default.interval is not None
    assert d.to_default.interval.high < 1.0
    assert "takes 9.09 % less time than the default" in d.sentence
    assert d.chosen.interval_s is not None
    assert d.chosen.interval_s.contains(d.chosen.median_s)
    assert [r.subject for r in d.runners_up] == [DEFAULT, "c"]
    assert d.runners_up[1].to_chosen.value == pytest.approx(1.2, rel=1e-3)
    assert d.runners_up[1].to_leader == d.runners_up[1].to_chosen
    assert [s.n for s in d.standings] == [15, 15, 15]
    check(decide([m("a", 1.0)], DEFAULT), "a", Rule.ONLY_CANDIDATE)
    check(decide([m("a", 1.0), m("ref:fa2", 0.5)], None), "a", Rule.ONLY_CANDIDATE)
    check(decide([m(DEFAULT, 1.0)], DEFAULT), DEFAULT, Rule.ONLY_CANDIDATE)


@pytest.mark.parametrize(("subject", "named"), [("sm80:(a): b", False), ("sm90:(a): b", True)])
def test_a_default_of_another_family_is_named(subject: str, named: bool) -> None:
    found = decide([steady(subject, 1.0), steady(DEFAULT, 2.0)], DEFAULT)
    assert (DEFAULT in found.sentence) is named


def test_a_missing_default_leaves_the_choice_and_is_said() -> None:
    d = decide([steady("a", 1.0), steady("b", 1.1)], DEFAULT)
    check(d, "a", Rule.CLEAR_WINNER)
    assert d.to_default is None
    assert d.default is None
    assert f"the default, {DEFAULT}, was not measured" in d.sentence
    assert "no default was named" in decide([m("a", 1.0), m("b", 2.0)], None).sentence


def test_references_are_compared_with_and_never_chosen() -> None:
    d = decide(
        [steady("ref:cudnn", 0.5), steady("a", 1.0), steady(DEFAULT, 2.0), steady("ref:fa2", 3.0)],
        DEFAULT,
    )
    check(d, "a", Rule.CLEAR_WINNER)
    assert list(d.to_references) == ["ref:cudnn", "ref:fa2"]
    assert d.to_references["ref:cudnn"].value == pytest.approx(2.0, rel=1e-3)
    assert d.to_references["ref:fa2"].value == pytest.approx(1 / 3, rel=1e-3)
    assert all(not s.subject.startswith("ref:") for s in d.standings)
    assert not any(s.startswith("ref:") for s in d.tie_set)


# Ties


def test_ties_within_half_a_per_cent_end_by_the_fixed_rule_not_by_time() -> None:
    smem = {"a": (98304, 168), "b": (49152, 255), "c": (49152, 200), DEFAULT: (1, 1)}
    ms = [steady("a", 1.0), steady("b", 1.001), steady("c", 1.002), steady(DEFAULT, 1.2)]
    d = decide(ms, DEFAULT, tie_break=lambda s: smem[s])
    check(d, "c", Rule.TIE_BREAK)
    assert d.leader.subject == "a"
    assert d.tie_set == ("c", "b", "a")
    assert "first of 3 tied candidates" in d.sentence
    assert [s.subject for s in d.standings if s.tied] == ["a", "b", "c"]
    d = decide([steady("b", 1.0), steady("a", 1.001)], None, tie_break=lambda s: (0,))
    check(d, "a", Rule.TIE_BREAK)
    check(decide([m("b", 1.0), m("a", 1.0)], None), "a", Rule.TIE_BREAK)


def test_an_interval_that_contains_one_is_a_tie_however_wide() -> None:
    ms = [m("a", 1.0, 1.0, 1.0), m("b", 1.2, 0.99, 1.3)]
    d = decide(ms, None, tie_break=lambda s: (s == "a",))
    assert d.tie_set == ("b", "a")
    assert d.chosen.subject == "a", "chosen is what is fast in any case"
    assert decide(ms, None, tie=0.3, tie_break=lambda s: (s == "a",)).chosen.subject == "b"
    assert decide([steady("a", 1.0), steady("b", 1.007)], None).tie_set == ("a",)
    assert set(decide([steady("a", 1.0), steady("b", 1.003)], None).tie_set) == {"a", "b"}
    assert decide([steady("a", 1.0), steady("b", 1.003)], None, tie=0.001).tie_set == ("a",)


# One sample each, as ncu with one run gives


def test_single_samples_are_decided_by_the_half_per_cent_alone() -> None:
    ms = [m("b", 1.0), m("a", 1.0049), m("c", 1.0051)]
    d = decide(ms, None)
    check(d, "a", Rule.TIE_BREAK)
    assert set(d.tie_set) == {"a", "b"}
    assert d.chosen.interval_s is None


def test_single_samples_never_leave_the_default() -> None:
    """They have no interval, so nothing tells a gain from chance."""
    d = decide([m("a", 0.5), m(DEFAULT, 1.0)], DEFAULT)
    check(d, DEFAULT, Rule.ONE_SAMPLE)
    assert d.leader.subject == "a"
    check(decide([m("a", 0.991), m(DEFAULT, 1.0)], DEFAULT), DEFAULT, Rule.WITHIN_MARGIN)
    check(decide([m("a", 0.997), m(DEFAULT, 1.0)], DEFAULT), DEFAULT, Rule.DEFAULT_IS_TIED)
    # One round that both took part in is one sample, however many the default has.
    check(decide([m("a", 0.5), steady(DEFAULT, 1.0)], DEFAULT), DEFAULT, Rule.ONE_SAMPLE)
    once = [steady("a", 0.98), m("b", 0.981), steady(DEFAULT, 1.0)]
    check(decide(once, DEFAULT, tie_break=lambda s: (s == "a",)), "a", Rule.TIE_BREAK)


# The default


def test_the_default_stays_when_it_leads() -> None:
    check(
        decide([steady("a", 1.1), steady(DEFAULT, 1.0)], DEFAULT), DEFAULT, Rule.DEFAULT_IS_LEADER
    )
    d = decide(
        [steady("a", 1.0), steady(DEFAULT, 1.002)], DEFAULT, tie_break=lambda s: (s == DEFAULT,)
    )
    check(d, DEFAULT, Rule.DEFAULT_IS_TIED)
    assert "cannot tell it from the fastest, a" in d.sentence
    ms = [steady("a", 0.992), steady(DEFAULT, 1.0)]
    d = decide(ms, DEFAULT)
    check(d, DEFAULT, Rule.WITHIN_MARGIN)
    assert d.tie_set == ("a",)
    assert d.leader.subject == "a"
    assert ": 0.80 % less time, where more than 1.00 % is asked" in d.sentence
    check(decide(ms, DEFAULT, margin=0.005), "a", Rule.CLEAR_WINNER)


def test_the_default_is_left_for_the_leader_and_the_tie_rule_then_chooses() -> None:
    """Asked of every tied one, it would be chance which of them are just beyond the margin."""
    for a in (0.9891, 0.9899, 0.9901, 0.9915):
        ms = [steady("b", 0.987), steady("a", a), steady(DEFAULT, 1.0)]
        d = decide(ms, DEFAULT)
        assert d.tie_set == ("a", "b")
        check(d, "a", Rule.TIE_BREAK)


def test_a_tied_candidate_that_may_be_no_faster_than_the_default_gives_way() -> None:
    """It is tied with the leader by its median, and its interval against the default holds 1."""
    noisy = m("a", *([0.990] * 9 + [1.02] * 6))
    d = decide([steady("b", 0.987), noisy, steady(DEFAULT, 1.0)], DEFAULT)
    assert d.tie_set == ("a", "b")
    check(d, "b", Rule.TIE_BREAK)


def test_who_may_be_chosen_beats_the_default_by_more_than_the_margin() -> None:
    """A single sample will do to be measured further, but not a gain within the margin."""
    times = {"a": [0.5] * 5, "b": [0.75], "c": [0.75] * 5, "d": [0.74], "e": [0.74] * 5}
    ms = [m(s, *taken) for s, taken in (times | {DEFAULT: [1.0] * 5}).items()]
    found = decide(ms, DEFAULT)
    assert found.chosen.subject == "a"
    assert contenders(found, ms, 0.25) == ("a", "d", "e")
    assert sound_choice(found, ms, {}) == found, "nothing says that it is behind"
    figures: dict[str, list[OnInputs]] = {"a": [OnInputs("sink", 1.0, Ratio(1.1, None))], "b": []}
    assert sound_choice(found, ms, figures, 0.25).chosen.subject == DEFAULT
    ms = [steady("a", 0.9), steady("b", 0.901), steady("c", 0.902), steady(DEFAULT, 1.0)]
    found = decide(ms, DEFAULT, tie_break=lambda s: (-ord(s[0]),))
    assert contenders(found, ms) == ("c", "b", "a"), "the tied ones as they would be chosen"


@pytest.mark.parametrize("value", [1.0, 1.0123, 2.5])
def test_the_default_in_place_of_a_choice_says_how_much_more_that_took(value: float) -> None:
    ms = [steady("a", 0.9), steady(DEFAULT, 1.0)]
    found = decide(ms, DEFAULT)
    kept = keep_default(found, ms, Confirmation("a", DEFAULT, Ratio(value, None), 40))
    check(kept, DEFAULT, Rule.CONTRADICTED)
    assert kept.to_default is not None
    assert kept.to_default.value == 1.0
    shown = [float(text) for text in re.findall(r"([\d.]+) %", kept.sentence)]
    assert shown == pytest.approx([100 * value - 100] if value > 1.0 else [], abs=0.005)


@pytest.mark.parametrize(
    ("times", "margin", "fastest"),
    [
        ({"a": [0.8] * 5, "b": [0.5] * 5, "c": [0.9] * 5, "other": [0.1] * 5}, 0.01, "ref:b"),
        ({"a": [0.5] * 5}, 0.5, None),  # not more than the margin
        ({"a": [0.5] * 5}, 0.49, "ref:a"),
        ({"a": [0.5, 0.5, 0.5, 1.0, 1.0]}, 0.01, None),  # it may be chance
        ({"a": [0.5]}, 0.01, None),
        ({}, 0.01, None),
    ],
)
def test_the_faster_reference_gains_more_than_the_margin_and_surely(
    times: dict[str, list[float]], margin: float, fastest: str | None
) -> None:
    references = [m(f"ref:{name}", *taken) for name, taken in times.items()]
    found = decide([m("ours", *[1.0] * 5), *references], None)
    assert faster_reference(found, ["ref:a", "ref:b", "ref:c"], margin) == fastest


# By ratios to a baseline of the same round


def test_ratios_are_compared_as_they_are() -> None:
    """Who left the race early did so at another clock, which times have in them and ratios do not:
    what levels the times must leave the ratios alone."""
    given = [
        dataclasses.replace(m("a", *[1.0] * 20), relative=(1.1,) * 4 + (0.9,) * 16),
        dataclasses.replace(m("b", *[1.0] * 4), relative=(0.95,) * 4),
    ]
    assert [s.subject for s in decide(given, None).standings] == ["a", "b"]
    times = [m("a", *(1.1,) * 4, *(0.9,) * 16), m("b", *(0.95,) * 4)]
    assert [s.subject for s in decide(times, None).standings] == ["b", "a"]
    times = [
        m("b", *(1.1,) * 4, *(0.9,) * 16),
        m("c", *(1.2,) * 4, *(0.8,) * 16),
        m("z", *(1.3,) * 4),
    ]
    assert [s.subject for s in decide(times, None).standings] == ["c", "z", "b"]


@pytest.mark.parametrize(
    ("value", "interval", "upheld"),
    [
        (0.99, None, True),
        (1.0, None, False),
        (1.01, None, False),
        (1.01, (0.99, 1.03), True),  # which contradicts it only by chance
        (1.01, (1.0, 1.03), False),
        (1.02, (1.01, 1.03), False),
    ],
)
def test_a_confirmation_is_contradicted_by_no_gain_that_is_sure(
    value: float, interval: tuple[float, float] | None, upheld: bool
) -> None:
    ratio = Ratio(value, interval and Interval(*interval))
    assert Confirmation("a", DEFAULT, ratio, 40).upheld is upheld


@pytest.mark.parametrize(("value", "near"), [(1.005, True), (1.0050001, False), (0.9, True)])
def test_a_tie_ends_at_its_bound(value: float, near: bool) -> None:
    assert is_near(Ratio(value, None)) is near
    assert is_tied(Ratio(value, None)) is (near and value > 0.9)
    assert is_tied(Ratio(value, Interval(0.5, 1.0))), "an interval that ends at 1 holds it"


@pytest.mark.parametrize(
    ("value", "high", "is_gain"),
    [(0.9899, 0.9999, True), (0.99, 0.9999, False), (0.9899, 1.0, False)],
)
def test_a_gain_is_more_than_the_margin_and_surely_one(
    value: float, high: float, is_gain: bool
) -> None:
    assert beats(Ratio(value, Interval(0.9, high)), 0.01) is is_gain


# Refusals


@pytest.mark.parametrize(
    ("measurements", "error", "said"),
    [
        ([], NoUsableVariant, "no measurement"),
        ([m("ref:fa2", 1.0)], NoUsableVariant, "only references"),
        ([m("a", 1.0), m("b", 1.0, method="ncu")], InvalidConfig, "never ranked together"),
        ([m("a", 1.0), m("ref:fa2", 1.0, method="ncu")], InvalidConfig, "never ranked together"),
        ([m("a", 1.0), m("b", 1.0, workload="w2")], InvalidConfig, "only one workload"),
        ([m("a", 1.0), m("a", 1.0)], InvalidConfig, "a was given twice"),
        ([m("a", 1.0), m("b")], InvalidConfig, "b has no samples"),
        ([m("a", 1.0), m("b", 0.0)], InvalidConfig, "not positive and finite"),
        ([m("a", 1.0), m("b", float("nan"))], InvalidConfig, "not positive and finite"),
        ([m("a", 1.0), m("b", float("inf"))], InvalidConfig, "not positive and finite"),
        ([dataclasses.replace(m("a", 1.0), relative=(0.0,))], InvalidConfig, "not positive"),
    ],
)
def test_what_cannot_be_ranked_is_refused(
    measurements: list[Measurement], error: type[FaTuneError], said: str
) -> None:
    with pytest.raises(error, match=said):
        decide(measurements, DEFAULT)


# Properties

times = st.floats(min_value=0.97, max_value=1.03)


@st.composite
def rounds(draw: st.DrawFn) -> list[Measurement]:
    n = draw(st.integers(1, 6))
    subjects = draw(st.sets(st.sampled_from(["a", "b", "c", DEFAULT, "ref:fa2"]), min_size=1))
    subjects.add("a")
    return [m(s, *draw(st.lists(times, min_size=n, max_size=n))) for s in sorted(subjects)]


@given(rounds(), st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_every_decision_keeps_its_promises(ms: list[Measurement], shuffler: random.Random) -> None:
    d = decide(ms, DEFAULT)
    shuffled = ms.copy()
    shuffler.shuffle(shuffled)
    assert decide(shuffled, DEFAULT) == d, "the order of measurements decides nothing"

    candidates = {x.subject for x in ms if not x.subject.startswith("ref:")}
    assert {s.subject for s in d.standings} == candidates
    assert d.leader.subject in d.tie_set
    assert d.leader.median_s == min(s.median_s for s in d.standings)
    assert d.chosen.subject in {*d.tie_set, DEFAULT}
    assert {d.chosen.subject, *(r.subject for r in d.runners_up)} == candidates
    assert d.chosen.to_chosen.value == 1.0
    if DEFAULT in candidates and d.chosen.subject != DEFAULT:
        assert d.to_default is not None
        assert d.to_default.value < 1.0
        assert d.to_default.interval is not None
        assert d.to_default.interval.high < 1.0
        samples = {x.subject: x.samples_s for x in ms}
        assert paired_ratio(samples[d.leader.subject], samples[DEFAULT]).value < 0.99
