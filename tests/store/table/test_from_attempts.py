"""Attempts and measurements as rows."""

from __future__ import annotations

import pytest

from fa_tune.core.model import Attempt, Measurement, Outcome, Quantity, Resources
from fa_tune.core.workload import DType, benchmark_workload
from fa_tune.store.table.from_attempts import rows_from_attempts, rows_from_measurements
from fa_tune.store.table.rows import Row

KEY = benchmark_workload(1024, 128, DType.BF16, causal=True).key
CONFIG = "(BF16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles"
RESOURCES = Resources(169, 0, 0, 0, 0, 49152, 128, 3)


def _measurement(subject: str, *samples_s: float, **counters: Quantity) -> Measurement:
    named = {name.replace("_DOT_", "."): value for name, value in counters.items()}
    return Measurement(subject, KEY, "events", samples_s, named)


def _only(rows: list[Row]) -> Row:
    (row,) = rows
    return row


def test_samples_become_mean_median_and_range() -> None:
    row = _only(rows_from_measurements([_measurement(f"sm80:{CONFIG}", 1e-3, 2e-3, 6e-3)]))
    assert row.duration_s == pytest.approx(3e-3)
    assert (row.median_s, row.min_s, row.max_s, row.n) == (2e-3, 1e-3, 6e-3, 3)
    assert (row.kernel, row.family, row.method) == (CONFIG, "sm80", "events")
    assert row.workload.key == KEY
    row = _only(rows_from_measurements([_measurement("sm80:a")]))
    assert row.duration_s is None
    assert row.n is None


def test_counters_and_resources() -> None:
    measurement = _measurement(
        f"sm80:{CONFIG}",
        1e-3,
        sm__cycles_elapsed_DOT_max=Quantity(1e6, "cycle"),
        lts__t_sector_hit_rate_DOT_pct=Quantity(80.5, "%"),
    )
    attempt = Attempt(measurement.subject, KEY, Outcome.OK, "", measurement)
    row = _only(rows_from_attempts([attempt], {measurement.subject: RESOURCES}))
    assert (row.cycles, row.l2_hit_percent, row.registers) == (1e6, 80.5, 169)
    assert row.sm_clock_hz is None
    assert _only(rows_from_measurements([measurement])).registers is None


def test_one_table_has_one_cycle_counter() -> None:
    both = {
        "sm__cycles_elapsed_DOT_max": Quantity(100, "cycle"),
        "gpc__cycles_elapsed_DOT_max": Quantity(101, "cycle"),
    }
    only_gpc = {"gpc__cycles_elapsed_DOT_max": Quantity(201, "cycle")}
    rows = rows_from_measurements(
        [
            _measurement("sm80:a", 1e-3, **both),
            _measurement("sm80:b", 2e-3, **only_gpc),
            _measurement("sm80:c", 3e-3),
        ]
    )
    assert [row.cycles for row in rows] == [101, 201, None]


def test_every_attempt_keeps_its_row() -> None:
    good = _measurement("sm80:good", 1e-3)
    attempts = [
        Attempt("sm80:slow", KEY, Outcome.TIMED_OUT, "over 60 s"),
        Attempt("sm80:wrong", KEY, Outcome.WRONG_RESULT, "off by 1", _measurement("x", 1e-9)),
        Attempt("sm80:good", KEY, Outcome.OK, "", good),
        Attempt("ref:fa2", KEY, Outcome.OK, "", _measurement("ref:fa2", 2e-3)),
        Attempt("ref:other", KEY, Outcome.CRASHED, "gone"),
    ]
    rows = rows_from_attempts(attempts)
    assert [row.kernel for row in rows] == ["FA2", "good", "slow", "wrong", "other"]
    assert len({row.group for row in rows}) == 1  # failures stand beside the measured
    assert [(row.outcome, row.reason) for row in rows[2:]] == [
        (Outcome.TIMED_OUT, "over 60 s"),
        (Outcome.WRONG_RESULT, "off by 1"),
        (Outcome.CRASHED, "gone"),
    ]
    for row in rows[2:]:
        assert row.duration_s is row.median_s is row.n is row.attn_tflops is None
    assert rows[0].kernel == "FA2"
    assert rows[1].duration_percent_of_baseline == 200
