"""Baselines, order, rates: what is worked out from rows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fa_tune.core.model import Outcome
from fa_tune.core.workload import DType
from fa_tune.operations import flops
from fa_tune.store.table.rows import Row, best, completed, grouped, ordered

CONFIG = "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles"
BASE = Row(
    CONFIG,
    family="sm80",
    batch=2,
    heads=3,
    kv_heads=3,
    seq_len=256,
    seq_len_kv=256,
    d_head=128,
    dtype=DType.FP16,
    causal=False,
    method="events",
)


def _row(kernel: str, ms: float | None = None, **fields: object) -> Row:
    family = "ref" if kernel in ("FA2", "FA3", "cuDNN") else "sm80"
    duration_s = None if ms is None else ms / 1e3
    row = replace(BASE, kernel=kernel, family=family, duration_s=duration_s)
    return replace(row, **fields)  # type: ignore[arg-type]


def test_references_first_the_baseline_on_top_then_ascending_then_failures() -> None:
    rows = [
        _row("slow", 3),
        _row("wrong", outcome=Outcome.WRONG_RESULT),
        _row("FA2", 2),
        _row("quick", 1),
        _row("unmeasured"),
        _row("cuDNN", 0.5),
    ]
    kernels = [row.kernel for row in ordered(rows)]
    assert kernels == ["FA2", "cuDNN", "quick", "slow", "wrong", "unmeasured"]


def test_percent_is_of_fa2_and_without_it_of_the_first_row() -> None:
    rows = completed(
        [
            _row("a", 4, cycles=100.0),
            _row("cuDNN", 1, cycles=50.0),
            _row("FA2", 2, cycles=80.0),
            _row("b", 1),
        ]
    )
    found = {r.kernel: (r.duration_percent_of_baseline, r.cycles_percent_of_baseline) for r in rows}
    assert found["FA2"] == (100, 100)
    assert found["cuDNN"] == (200, 160)
    assert found["a"] == (50, 80)
    assert found["b"] == (200, None)
    rows = completed([_row("b", 4), _row("a", 2), _row("failed", outcome=Outcome.CRASHED)])
    assert [row.duration_percent_of_baseline for row in rows] == [100, 50, None]
    rows = completed([_row("b", 4), _row("cuDNN", 1)])
    assert [row.duration_percent_of_baseline for row in rows] == [100, 25]
    rows = completed([_row("FA2", outcome=Outcome.TIMED_OUT), _row("a", 2)])
    assert {row.kernel: row.duration_percent_of_baseline for row in rows} == {"a": 100, "FA2": None}


def test_an_excerpt_keeps_the_percentages_of_the_whole() -> None:
    excerpt = [_row("a", 2, duration_percent_of_baseline=150.0), _row("b", 4)]
    assert [r.duration_percent_of_baseline for r in completed(excerpt)] == [150, 50]
    whole = [*excerpt, _row("FA2", 4)]
    assert {r.kernel: r.duration_percent_of_baseline for r in completed(whole)} == {
        "FA2": 100,
        "a": 200,
        "b": 100,
    }


@pytest.mark.parametrize(
    "other",
    [
        {"seq_len": 512, "seq_len_kv": 512},
        {"dtype": DType.BF16},
        {"causal": True},
        {"lse": True},
        {"softmax_scale": 0.5},
        {"bottom_right": True},
        {"method": "ncu"},
        {"source": "b.csv"},
        {"batch": None},
    ],
)
def test_rows_of_different_conditions_are_not_compared(other: dict[str, object]) -> None:
    rows = [_row("FA2", 2), _row("a", 1), _row("a", 8, **other)]
    assert len(grouped(rows)) == 2
    apart = next(row for row in completed(rows) if row.duration_s == 0.008)
    assert apart.duration_percent_of_baseline == 100


def test_rates() -> None:
    (row,) = completed([_row(CONFIG, 2, median_s=0.001)])
    workload = row.workload
    assert workload is not None
    assert row.tflops == flops.total_flop(workload, 64, 64) / 0.002 / 1e12
    assert row.attn_tflops == flops.attn_flop(workload) / 0.002 / 1e12
    assert row.matmul_tflops == flops.matmul_flop(workload) / 0.001 / 1e12  # over the median
    (full,) = completed([_row(CONFIG, 2)])
    (causal,) = completed([_row(CONFIG, 2, causal=True)])
    assert full.tflops is not None
    assert causal.tflops is not None
    assert 0.5 < causal.tflops / full.tflops < 1
    (row,) = completed([_row(CONFIG, 2, heads=None)])
    assert (row.tflops, row.attn_tflops, row.matmul_tflops) == (None, None, None)


@pytest.mark.parametrize("fields", [{"seq_len": 250, "seq_len_kv": 250}, {"family": "nobody"}])
def test_no_tiled_rate_where_the_count_does_not_hold(fields: dict[str, object]) -> None:
    (row,) = completed([_row(CONFIG, 2, **fields)])
    assert row.tflops is None
    assert row.attn_tflops is not None


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "seq_len 256, d_head 128, FP16, full, batch 2, 3 heads; events"),
        ({"lse": True, "softmax_scale": 0.125}, "3 heads, with log-sum-exp, scale 0.125; "),
        ({"causal": True, "seq_len_kv": 300}, "seq_len 256x300, d_head 128, FP16, causal, "),
        ({"causal": True, "seq_len_kv": 300, "bottom_right": True}, "causal bottom-right, "),
    ],
)
def test_a_group_says_what_problem_it_is(fields: dict[str, object], text: str) -> None:
    group = str(_row(CONFIG, 2, **fields).group)
    assert text in group, group


def test_what_is_usual_need_not_be_stated() -> None:
    stated = _row(CONFIG, 2, bottom_right=False, lse=False)
    silent = _row(CONFIG, 2, bottom_right=None, lse=None)
    assert stated.group == silent.group
    assert stated.workload == silent.workload
    assert stated.workload is not None
    assert _row(CONFIG, 1, kv_heads=2).workload is None


def test_best_is_by_median_among_ours() -> None:
    rows = [
        _row("cuDNN", 0.1),
        _row("steady", 2, median_s=0.002),
        _row("outlier", 9, median_s=0.001),
        _row("broken", 0.5, outcome=Outcome.WRONG_RESULT),
        _row("stranger", 0.2, family=""),
    ]
    found = best(rows)
    assert found.kernel == "outlier"
    assert best([rows[0]]) is None
