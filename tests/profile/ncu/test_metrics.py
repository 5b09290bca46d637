"""The metric lists, their names for people, and what replaces a metric a chip lacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from fa_tune.core.units import parse_unit
from fa_tune.profile.ncu.metrics import (
    DURATION,
    RANK,
    TENSOR_PIPE,
    is_whole,
    parse_query_metrics,
    resolve_metrics,
)
from fa_tune.profile.ncu.parse import read_profile

DATA = Path(__file__).parent / "data"


@pytest.mark.parametrize(
    ("metric", "unit", "whole"),
    [
        (DURATION, "ns", True),
        (DURATION, "us", False),
        ("sm__cycles_elapsed.max", "cycle", True),
        ("sm__cycles_elapsed.avg", "cycle", False),
        ("dram__bytes_read.sum", "byte", True),
        ("dram__bytes_read.sum", "Mbyte", False),
        ("launch__grid_size", "", True),
        ("launch__waves_per_multiprocessor", "", False),
        ("launch__occupancy_cluster_pct", "%", False),
        ("device__attribute_max_threads_per_block", "", True),
        ("sm__cycles_elapsed.avg.per_second", "hz", False),
        ("smsp__average_warps_issue_stalled_wait_per_issue_active.ratio", "inst", False),
        ("lts__t_sector_hit_rate.pct", "%", False),
        ("GPU Speed Of Light/Something", "", False),
    ],
)
def test_what_is_counted_in_whole_numbers(metric: str, unit: str, whole: bool) -> None:
    assert is_whole(metric, parse_unit(unit)) is whole


def test_what_is_called_whole_is_whole_in_the_recordings() -> None:
    """The claim that decides between two readings of a number, checked on real files."""
    checked = 0
    for name in ("details_full_h100.csv", "details_basic_h200.csv", "raw_4metrics_h200.csv"):
        for launch in read_profile(DATA / name).launches:
            for metric in launch.metrics:
                quantity = launch.quantity(metric)
                # In base units a duration is in seconds, the others keep their unit.
                if (
                    quantity
                    and quantity.unit != "s"
                    and is_whole(metric, parse_unit(quantity.unit))
                ):
                    assert quantity.value == round(quantity.value), metric
                    checked += 1
    assert checked > 500


def test_a_missing_metric_is_replaced_by_the_closest_or_dropped_with_a_note() -> None:
    sm80 = {
        *(name.partition(".")[0] for name in RANK),
        "sm__pipe_tensor_cycles_active", "dram__bytes_read.sum",
    }  # fmt: skip
    wanted = (*RANK, TENSOR_PIPE, "dram__bytes_read.sum", "smsp__inst_executed_op_tma_ld.sum")
    names, notes = resolve_metrics(wanted, sm80)
    replacement = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"
    assert names == (*RANK, replacement, "dram__bytes_read.sum")
    assert notes == (
        f"tensor pipe busy: {replacement} in place of {TENSOR_PIPE}",
        "TMA loads: smsp__inst_executed_op_tma_ld.sum is not available on this chip",
    )
    assert resolve_metrics((*RANK, *RANK), None) == (RANK, ())
    text = """Device NVIDIA H100 80GB HBM3 (GH100)
------------------------------------- ------- -----------------------------------
Metric Name                           Unit    Metric Description
------------------------------------- ------- -----------------------------------
dram__bytes                           byte    # of bytes accessed in DRAM
gpu__time_duration.sum                ns      incremental duration in nanoseconds
sm__pipe_tensor_op_hmma_cycles_active cycle   # of cycles where HMMA tensor pipe was active
"""
    assert parse_query_metrics(text) == {
        "dram__bytes",
        "gpu__time_duration.sum",
        "sm__pipe_tensor_op_hmma_cycles_active",
    }
