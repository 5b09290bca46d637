"""Decoding's defaults of many tiles are what a script makes of a recording, and near what is the
fastest of other problems."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import fit_many_tiles
from fa_tune import families
from fa_tune.core.arch import limits
from fa_tune.core.workload import DType, Workload
from fa_tune.families.decode import many_tiles
from fa_tune.families.decode.bounds import bounds_of
from fa_tune.families.decode.config import DecodeConfig
from fa_tune.families.decode.defaults import by_rules
from fa_tune.families.decode.many_tiles import Point, Way, fastest
from fa_tune.families.plan import TileOrder
from fit_many_tiles import FAR, LIBRARY, NEAR, RULES, Problem, main, read, table, ways_of

BETWEEN = fit_many_tiles.RECORDING.with_name("many_tiles_between_h200.tsv")
H200 = limits((9, 0))
_WHOLE, _EACH = Way(3, TileOrder.WHOLE_ROUNDS), Way(2, TileOrder.CTA_PER_TILE, dependent=True)


def _default(workload: Workload) -> DecodeConfig:
    found: DecodeConfig = families.get("decode").default_for(workload, H200)
    return found


def _pretended(batch: int, fast: Way, d_head: int = 64) -> Problem:
    """A problem of which a way is the fastest, all others take twice as long."""
    workload = Workload(batch, 8, 8, 1, 1000, d_head, DType.BF16)
    times = {name: 1.0 if way == fast else 2.0 for name, way in ways_of(d_head).items()}
    return Problem(workload, {**times, LIBRARY: 0.5})


def test_the_table_is_that_of_the_recording() -> None:
    result = CliRunner().invoke(main, ["--check"])
    assert result.exit_code == 0, result.output


def test_a_way_is_that_of_the_problem_and_of_those_near_it() -> None:
    far = [_pretended(33, _WHOLE), _pretended(400, _EACH)]
    assert [*table(far)[64].values()] == [_WHOLE, _EACH]
    # One among many is taken for chance.
    many = [_pretended(batch, _WHOLE) for batch in (396, 398, 402, 404)]
    assert {*table([*many, _pretended(400, _EACH)])[64].values()} == {_WHOLE}


def test_what_was_left_out_counts_as_slow_and_a_library_not_at_all() -> None:
    problem = _pretended(400, _EACH)
    names = list(ways_of(64))
    fast = names[list(ways_of(64).values()).index(_EACH)]
    times = {fast: 1.0, names[1]: 1.2, LIBRARY: 0.5}
    losses = dict(zip(names, replace(problem, times=times).losses(names), strict=True))
    assert (losses[fast], losses[names[1]]) == (0.0, math.log(1.2))
    assert losses[RULES] == math.log(FAR)


def test_a_recording_is_read_by_the_columns_above_each_line(tmp_path: Path) -> None:
    path = tmp_path / "some.tsv"
    key, other = "b40_h8_kv8_q1_k100_d64_bf16_full", "b40_h8_kv8_q1_k100_d32_bf16_full"
    path.write_text(
        f"Words.\n\nconfigs\ta\tb\tcudnn\n{key}\t1.5\t\t2\nconfigs\tc\n{other}\t3.25\n", "utf-8"
    )
    assert [(p.workload.key, p.times) for p in read(path)] == [
        (key, {"a": 1.5, "cudnn": 2.0}),
        (other, {"c": 3.25}),
    ]


@given(st.floats(1, 50), st.integers(1, 20_000), st.floats(1, 50), st.integers(1, 20_000))
def test_distance_is_alike_both_ways_and_nothing_of_the_same(
    tiles: float, keys: int, other_tiles: float, other_keys: int
) -> None:
    here, there = Point(tiles, keys), Point(other_tiles, other_keys)
    assert here.distance(here) == 0
    assert here.distance(there) == pytest.approx(there.distance(here))
    assert here.distance(there) >= abs(math.log(keys / other_keys)) / 2 - 1e-9
    assert here.distance(Point(tiles, 4 * keys)) > NEAR


def test_one_tile_more_than_ctas_is_far_from_as_many() -> None:
    full, over, half = Point(2.0, 500), Point(2.01, 500), Point(2.4, 500)
    assert over.distance(half) < over.distance(full)


@pytest.mark.parametrize(("d_head", "like"), [(136, 120), (152, 120), (176, 160), (208, 192)])
def test_other_heads_are_as_those_whose_rows_are_as_many_sectors(d_head: int, like: int) -> None:
    for tiles in (1.0, 1.7, 2.5, 5.0, 20.0):
        assert fastest(d_head, Point(tiles, 700)) == fastest(like, Point(tiles, 700))


@pytest.mark.parametrize(
    "other",
    [
        {"batch": 10},  # fewer tiles than multiprocessors
        {"seq_len_q": 5},  # more than 16 rows
        {"seq_len_kv": 1025, "cache_lengths": "lognormal"},
    ],
)
def test_where_nothing_was_measured_rules_decide(other: dict[str, object]) -> None:
    many = Workload(50, 32, 8, 1, 1000, 64, DType.FP16)
    assert _default(many).order
    workload = replace(many, **other)  # type: ignore[arg-type]
    assert not _default(workload).order
    assert _default(workload) == by_rules(workload, H200, bounds_of((9, 0)))


def test_older_devices_have_no_launches_that_overlap() -> None:
    workload = Workload(33, 4, 4, 1, 100, 64, DType.FP16)
    assert _default(workload).dependent
    before = families.get("decode").default_for(workload, limits((8, 0)))
    assert before.order
    assert not before.dependent


@pytest.mark.parametrize(
    ("path", "mean", "most"), [(fit_many_tiles.RECORDING, 1.01, 1.25), (BETWEEN, 1.02, 1.2)]
)
def test_defaults_are_near_the_fastest_that_was_measured(
    path: Path, mean: float, most: float
) -> None:
    """Of the problems that the table was made of, and of others."""
    losses = {}
    for problem in read(path):
        own = {c: time for c, time in problem.times.items() if c != LIBRARY}
        default = _default(problem.workload)
        time = own.get(str(default) if default.order else RULES, math.inf)
        losses[problem.workload.key] = time / min(own.values())
    assert len(losses) > 100
    assert statistics.fmean(losses.values()) <= mean
    assert max(losses.values()) <= most, max(losses, key=losses.__getitem__)


def test_the_table_has_a_way_for_every_kind_of_rows() -> None:
    ways = {
        fastest(d, Point(t, k)) for d in range(32, 257, 8) for t in (1, 3, 9) for k in (50, 9000)
    }
    assert len(ways) > 4
    assert ways <= {*ways_of(64).values()}
    assert many_tiles.RULES in ways_of(64).values()
