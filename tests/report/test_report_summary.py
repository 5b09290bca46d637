"""The summary's figures and words."""

from __future__ import annotations

from dataclasses import replace

from fa_tune.core.model import Outcome
from fa_tune.core.workload import DType
from fa_tune.report.summary import summarise
from fa_tune.store.table.rows import Row

BASE = Row("", family="sm80", seq_len=512, d_head=128, dtype=DType.FP16, method="events")


def _row(kernel: str, ms: float | None, **fields: object) -> Row:
    family = "ref" if kernel.startswith(("FA", "cu")) else "sm80"
    duration_s = None if ms is None else ms / 1e3
    row = replace(BASE, kernel=kernel, family=family, duration_s=duration_s)
    return replace(row, **fields)  # type: ignore[arg-type]


def test_winner_neighbours_references_failures() -> None:
    (summary,) = summarise(
        [
            _row("a", 1.0),
            _row("b", 1.009),
            _row("c", 1.02),
            _row("FA2", 1.5),
            _row("cuDNN", 0.5),
            _row("FA3", None, outcome=Outcome.CRASHED),
            _row("d", None, outcome=Outcome.WRONG_RESULT),
            _row("e", None, outcome=Outcome.WRONG_RESULT),
        ]
    )
    assert summary.sentences == (
        "seq_len 512, d_head 128, FP16; events: the fastest of 3 configs is a at 1 ms.",
        "1 other is within 1 % of it.",
        "Its speed is 1.50x that of FA2, 0.50x that of cuDNN (the fastest of them).",
        "Without a result: 2 wrong result.",
    )


def test_workloads_and_methods_are_apart_and_references_alone_say_nothing() -> None:
    rows = [
        _row("a", 1),
        _row("b", 2, method="ncu"),
        _row("c", 3, seq_len=1024),
        _row("FA2", 3, seq_len=2048),
    ]
    winners = [s.winner.kernel for s in summarise(rows) if s.winner]
    assert winners == ["a", "b", "c"]
    (summary,) = summarise([_row("a", None, outcome=Outcome.TIMED_OUT), _row("FA2", 1)])
    assert summary.winner is None
    assert summary.sentences == (
        "seq_len 512, d_head 128, FP16; events: no config has a valid time.",
        "Without a result: 1 timed out.",
    )
