"""How often tunings agree, on simulated noise: what the rule is for."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_tune.core.errors import ProfileFormatError, StorageError
from fa_tune.core.stats import Interval, Ratio
from fa_tune.core.stopping import StoppingRule
from fa_tune.lab import repeatability
from fa_tune.lab.repeatability import RUNS, RecordedTunings, Tuning, agreement, is_slower, simulated

DEFAULT = "sm80:default"


def tuning(
    times: Mapping[str, float],
    seed: int,
    *,
    noise: float = 0.004,
    shift: float = 0.0,
    ranks: Mapping[str, tuple[int, ...]] | None = None,
) -> Tuning:
    """A tuning of kernels of these times: `noise` from sample to sample, and `shift` from one
    tuning to the next (where its memory lies, how warm the board is), both standard deviations
    as fractions."""
    dice = random.Random(seed)
    mine = {s: t * (1.0 + dice.gauss(0.0, shift)) for s, t in times.items()}
    samples: dict[str, list[float]] = {s: [] for s in times}
    rule = StoppingRule(samples, 5, keep=[DEFAULT], default=DEFAULT)
    while active := rule.next_round()[1]:
        common = 1.0 + dice.gauss(0.0, noise)
        for s in active:
            samples[s].append(mine[s] * common * (1.0 + dice.gauss(0.0, noise)))
    found = Tuning(
        "w",
        "events",
        seed,
        DEFAULT,
        DEFAULT,
        DEFAULT,
        {s: tuple(taken) for s, taken in samples.items()},
        dict(ranks or {s: (i,) for i, s in enumerate(times)}),
    )
    return found.decided()


CROWDED = {
    DEFAULT: 1.08,
    "sm80:first": 1.001,
    "sm80:second": 1.0,
    "sm80:third": 1.0015,
    "sm80:fourth": 1.002,
    "sm80:out": 1.02,
}


def test_ten_tunings_agree_where_plain_minimum_flips() -> None:
    found = agreement([tuning(CROWDED, seed, shift=0.0005) for seed in range(10)])
    assert found.choices == (("sm80:first", 10),)
    assert found.flips == 0
    assert found.flips_lowest_median > 0
    assert found.flips_lowest_sample > 0
    assert found.slower == 0
    assert found.worst is not None
    assert found.worst.value < 0.95
    times = {DEFAULT: 1.0} | {f"sm80:{i}": 0.996 + i / 1000 for i in range(8)}
    found = agreement([tuning(times, seed, shift=0.001) for seed in range(20)])
    assert found.choices == ((DEFAULT, 20),)
    assert found.flips_lowest_median > 5
    assert found.worst is None, "the default is not compared with itself"
    assert found.slower == 0


def test_a_choice_that_is_slower_elsewhere_is_counted() -> None:
    fast = tuning({DEFAULT: 1.0, "sm80:a": 0.9}, 1)
    slow = tuning({DEFAULT: 1.0, "sm80:a": 1.1}, 2)
    found = agreement([fast, slow])
    assert {t.chosen for t in (fast, slow)} == {"sm80:a", DEFAULT}
    assert found.flips == 1
    assert found.slower == 1
    assert found.worst is not None
    assert found.worst.value == pytest.approx(1.1, rel=0.02)
    one = tuning({DEFAULT: 1.0, "sm80:a": 0.9}, 1)
    slower = dataclasses.replace(one, confirmed=Ratio(1.05, Interval(1.04, 1.06)))
    assert agreement([slower]).slower == 1
    # Where the default took its place, nothing slower was chosen.
    replaced = dataclasses.replace(slower, chosen=DEFAULT)
    assert agreement([replaced]).slower == 0


@pytest.mark.parametrize(
    ("ratio", "slower"),
    [
        (Ratio(1.02, Interval(1.005, 1.03)), True),
        (Ratio(1.02, Interval(0.99, 1.03)), False),
        (Ratio(1.009, Interval(1.008, 1.01)), False),
        (Ratio(1.02, None), True),
    ],
)
def test_slower_is_beyond_the_margin_and_chance(ratio: Ratio, slower: bool) -> None:
    assert is_slower(ratio) is slower


# Simulation -------------------------------------------------------------------------------------


def test_simulated_tunings_are_drawn_from_recorded_ones() -> None:
    recorded = [tuning(CROWDED, seed) for seed in range(3)]
    made = simulated(recorded, 20, seed=1)
    assert len(made) == 20
    known = {s: {t for one in recorded for t in one.samples_s[s]} for s in CROWDED}
    for one in made:
        assert all(set(taken) <= known[s] for s, taken in one.samples_s.items())
        lengths = {s: len(t) for s, t in one.samples_s.items()}
        assert lengths[DEFAULT] == max(lengths.values()) >= RUNS, "the default stays to the end"
    assert simulated(recorded, 20, seed=1) == made
    assert simulated(recorded, 20, seed=2) != made
    one = tuning(CROWDED, 4)
    ratios = {
        b / a for a, b in zip(one.samples_s[DEFAULT], one.samples_s["sm80:first"], strict=False)
    }
    for made in simulated([one], 5, seed=0):
        pairs = zip(made.samples_s[DEFAULT], made.samples_s["sm80:first"], strict=False)
        assert {b / a for a, b in pairs} <= ratios


# The file ---------------------------------------------------------------------------------------


def test_a_file_comes_back_as_it_went_in(tmp_path: Path) -> None:
    tunings = [tuning(CROWDED, seed) for seed in range(2)]
    confirmed = dataclasses.replace(tunings[0], confirmed=Ratio(0.97, Interval(0.96, 0.98)))
    recorded = RecordedTunings((confirmed, tunings[1]), "measured on a GPU")
    repeatability.save(tmp_path / "deep" / "ten.json", recorded)
    assert repeatability.load(tmp_path / "deep" / "ten.json") == recorded


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "another"},
        {"tunings": [{}]},
        {"tunings": 3},
        {"whose": None, "tunings": [None]},
    ],
)
def test_what_is_no_such_file_is_one_line(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "ten.json"
    repeatability.save(path, RecordedTunings((tuning(CROWDED, 0),), "whose"))
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ProfileFormatError) as caught:
        repeatability.load(path)
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize("taken", [[], [0.0], [float("inf")], [-1.0], ["x"]])
def test_times_that_are_none_are_refused(tmp_path: Path, taken: list[object]) -> None:
    path = tmp_path / "ten.json"
    repeatability.save(path, RecordedTunings((tuning(CROWDED, 0),), "whose"))
    document = json.loads(path.read_text())
    document["tunings"][0]["samples_s"]["sm80:first"] = taken
    path.write_text(json.dumps(document))
    with pytest.raises(ProfileFormatError):
        repeatability.load(path)


def test_a_file_that_is_not_there_or_no_json(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        repeatability.load(tmp_path / "none.json")
    for text in ("{", '{"whose": "a", "whose": "b"}', "[" * 5000, "9" * 5000):
        (tmp_path / "no.json").write_text(text)
        with pytest.raises(ProfileFormatError, match="JSON"):
            repeatability.load(tmp_path / "no.json")


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=12))
def test_flips_are_who_is_not_with_the_most(choices: list[str]) -> None:
    base = tuning({DEFAULT: 1.0, "sm80:a": 0.9}, 1)
    samples = {**base.samples_s, **{f"sm80:{c}": base.samples_s["sm80:a"] for c in "abc"}}
    tunings = [dataclasses.replace(base, chosen=f"sm80:{c}", samples_s=samples) for c in choices]
    found = agreement(tunings)
    assert found.flips == len(choices) - max(choices.count(c) for c in "abc")
    assert sum(n for _, n in found.choices) == found.tunings == len(choices)
