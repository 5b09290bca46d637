"""Replays count what strategies need, and random search is what it is calculated to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from fa_tune.core.model import Outcome
from fa_tune.core.options import Silent
from fa_tune.lab.replay import order_of, random_score, replay_strategies, score
from fa_tune.lab.space_table import (
    SUFFIX,
    RecordedWorkload,
    SpaceMeta,
    SpaceRow,
    SpaceTable,
    recorded,
)
from fa_tune.lab.strategies import Comparison, cells, compare, headline, ranges, without_start
from tests.synthetic_spaces import outcome
from tests.synthetic_spaces import space as synthetic

WORKLOAD = "b16_h16_kv16_q4096_k4096_d128_fp16_full"


def line(times: list[float | None], default: int | None = None) -> RecordedWorkload:
    """A space with one knob."""
    rows = tuple(
        SpaceRow(f"v{i}", WORKLOAD, Outcome.CRASHED if t is None else Outcome.OK, {"n": i},
            () if t is None else (t,))
        for i, t in enumerate(times)
    )  # fmt: skip
    defaults = {} if default is None else {WORKLOAD: f"v{default}"}
    meta = SpaceMeta({"n": "int"}, defaults=defaults)
    (one,) = recorded(SpaceTable(Path(f"line{SUFFIX}"), meta, rows))
    return one


class Nobody(Silent):
    """Counts what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.total = self.done = 0

    def stage(self, name: str, total: int) -> None:
        self.total += total

    def advance(self, text: str = "") -> None:
        self.done += 1

    def warn(self, text: str) -> None:
        raise AssertionError(text)


def test_scores_count_measurements_failures_included() -> None:
    space = line([None, 2.0, 1.04, 1.0])
    chance = random_score(space, 4)
    found = score(space, "x", [[0, 1, 2, 3], [2, 3], [3], [3], [3]], 4, chance)
    assert found.needed[0.95] == (1, 3)
    assert found.needed[0.99] == (1, 4)
    assert found.curve[0.9] == (0.0, 0.5, pytest.approx(1 / 1.04), 1.0)
    assert found.curve[0.5] == (1.0, 1.0, 1.0, 1.0)
    space = line([2.0, 1.0, None, None])
    found = score(space, "x", [[0, 2, 3]], 3, random_score(space, 3))
    assert found.needed[0.95] == (None, None)
    assert cells(found)[1] == ">3 / >3"
    space = line([5.0, 4.0, 3.0, 1.0])
    chance = random_score(space, 4)
    assert score(space, "bad", [[0, 1, 2, 3]], 4, chance).behind == (1, 2, 3)
    assert score(space, "good", [[3]], 4, chance).behind == ()


def test_random_replayed_agrees_with_random_calculated() -> None:
    space = line([1.0 + (i * 7919) % 300 / 100 for i in range(300)])
    orders = replay_strategies(space, {"random": 300}, limit=300, batch=1, jobs=1)["random"]
    chance = random_score(space, 300)
    found = score(space, "random", orders, 300, chance)
    for level, (median, unlucky) in chance.needed.items():
        assert median is not None
        assert unlucky is not None
        measured = found.needed[level]
        assert measured[0] == pytest.approx(median, rel=0.25, abs=2)
        assert measured[1] == pytest.approx(unlucky, rel=0.25, abs=2)


def test_a_replay_stops_at_the_best_and_at_the_limit() -> None:
    space = line([3.0, 1.0, 2.0, 4.0], default=1)
    assert order_of(space, "exhaustive", 0, 4, 1) == [1]
    assert order_of(without_start(space), "exhaustive", 0, 4, 1) == [0, 1]
    assert order_of(without_start(space), "exhaustive", 0, 1, 4) == [0]
    space = line([1.0 + (i * 7) % 12 for i in range(12)])
    alone = replay_strategies(space, {"random": 2, "learned": 2}, limit=8, batch=2, jobs=1)
    assert replay_strategies(space, {"random": 2, "learned": 2}, limit=8, batch=2, jobs=2) == alone


def test_compare_puts_random_first_and_reports_every_run() -> None:
    watcher = Nobody()
    space = line([3.0, 1.0, 2.0, None], default=2)
    scores = compare(space, Comparison(("exhaustive", "learned"), seeds=3, limit=4), watcher)
    assert [s.strategy for s in scores] == ["random (calculated)", "exhaustive", "learned"]
    assert (watcher.total, watcher.done) == (6, 6)
    assert headline(space) == (
        f"line {WORKLOAD}: 4 configs, 3 ran, the best takes 1000 ms; "
        "the default, measured first, reaches 50.0 % of it"
    )
    assert ranges([1, 2, 3, 7, 9, 10]) == "1-3, 7, 9-10"
    assert ranges([]) == "never"


def test_learned_needs_few_measurements_in_a_large_space() -> None:
    """A synthetic space of 5,184 configs; the default is not told."""
    space, times = synthetic(1024, causal=True)
    rows = tuple(
        SpaceRow(p.key, WORKLOAD, outcome(t), p.knobs, () if t is None else (t,), facts=p.facts)
        for p, t in zip(space.points, times, strict=True)
    )
    one = without_start(RecordedWorkload("synthetic", space, rows))
    found = compare(one, Comparison(("learned",), seeds=4, limit=60), Nobody())
    chance, learned = found
    assert learned.needed[0.95][1] is not None
    assert learned.needed[0.95][1] <= 25
    assert learned.needed[0.98][1] is not None
    assert chance.needed[0.98][0] is not None
    assert chance.needed[0.98][0] > 100
