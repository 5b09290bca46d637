"""What the page says inputs cost a config."""

from __future__ import annotations

import pytest

from fa_tune.core.comparison import OnInputs
from fa_tune.core.model import Measurement
from fa_tune.core.workload import DType, benchmark_workload
from fa_tune.report.page.figures import Place, on_inputs
from fa_tune.report.page.source import Source
from fa_tune.store.table.from_attempts import rows_from_measurements

KEY = benchmark_workload(1024, 128, DType.FP16).key
SUBJECT = "sm90:a"


def ratios(*figures: OnInputs) -> tuple[list[float], set[str]]:
    """Over the quickest inputs, and how it was measured."""
    rows = rows_from_measurements([Measurement("ref:fa2", KEY, "events", (1e-3,))])
    source = Source("x", rows, on_inputs={KEY: {SUBJECT: figures}})
    told = on_inputs([Place("x", "x", source, rows)], {})
    return [r["over_fastest"] for r in told], {r["samples"] for r in told}


def test_ratios_are_of_paired_samples_where_all_kinds_have_them() -> None:
    """The medians have the clocks of two moments in them."""
    found = ratios(
        OnInputs("trained", 1.0e-3, None, 1.0),
        OnInputs("normal", 1.1e-3, None, 0.8),
        OnInputs("falling", 1.2e-3, None, 1.6),
    )
    assert found == (pytest.approx([1.25, 1.0, 2.0]), {"in the same rounds"})
    found = ratios(
        OnInputs("trained", 1.0e-3, None, 1.0),
        OnInputs("falling", 1.2e-3, None, None),
    )
    assert found == (pytest.approx([1.0, 1.2]), {"one kind after another"})
