"""The order of the rows, the mark and the sentence name one fastest config."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from fa_tune.report.formats import write_text
from fa_tune.report.load import load_report_source
from fa_tune.report.summary import summarise
from fa_tune.report.tables import tables_of
from fa_tune.store.table.rows import Row, grouped
from tests.project_files import ROOT

SLOW_CLOCK = "(FP16, 128, 64, 64, 4): load_0_0_0_tiles"
FAST_CLOCK = "(FP16, 128, 64, 32, 4): load_0_0_0_tiles"


def test_what_was_measured_at_a_slower_clock_is_not_slower() -> None:
    """By its ratio to the baseline beside it, though its own times are longer."""
    rows = [
        Row(FAST_CLOCK, 1.0, family="sm80", median_s=1.0, n=2, relative=(1.02, 1.04)),
        Row(SLOW_CLOCK, 1.1, family="sm80", median_s=1.1, n=2, relative=(0.98, 1.00)),
    ]
    (table,) = tables_of(rows)
    assert table.best is not None
    assert table.cells[table.best][0] == SLOW_CLOCK
    (summary,) = summarise(rows)
    assert SLOW_CLOCK in summary.sentences[0]


@pytest.mark.parametrize("path", sorted((ROOT / "profiles" / "nvidia_h200").glob("fast*.csv")))
def test_tables_of_recordings(path: Path) -> None:
    rows = load_report_source(path)
    out = io.StringIO()
    write_text(rows, out, 1000)
    tables = [t.splitlines() for t in out.getvalue().split("\n\n") if t.strip()]
    summaries = summarise(rows)
    assert len(tables) == len(summaries) == len(grouped(rows))
    for lines, summary in zip(tables, summaries, strict=True):
        cells = [re.split(r" *\| *", line)[1:] for line in lines if line.startswith("| ")][1:]
        ours = [c for c in cells if c[1] not in ("FA2", "FA3", "FA4", "cuDNN")]
        (marked,) = [c for c in ours if c[0] == "*"]
        assert ours[0] == marked
        assert summary.winner is not None
        assert marked[1] == summary.winner.kernel
