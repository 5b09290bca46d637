"""Scores survive JSON, and what is none is refused with its file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fa_tune.core import codec
from fa_tune.core.errors import ProfileFormatError, StorageError
from fa_tune.core.model import Outcome
from fa_tune.lab.scores import document, read
from fa_tune.lab.space_table import (
    SUFFIX,
    RecordedWorkload,
    SpaceMeta,
    SpaceRow,
    SpaceTable,
    recorded,
)
from fa_tune.lab.strategies import Comparison, compare
from tests.lab.test_replay import Nobody

WORKLOAD = "b16_h16_kv16_q4096_k4096_d128_fp16_full"


@pytest.fixture
def space() -> RecordedWorkload:
    rows = tuple(
        SpaceRow(f"v{i}", WORKLOAD, Outcome.OK, {"n": i}, (1.0 + (i * 7) % 12 / 12,))
        for i in range(12)
    )
    (one,) = recorded(SpaceTable(Path(f"line{SUFFIX}"), SpaceMeta({"n": "int"}), rows))
    return one


def test_scores_come_back_as_they_were(space: RecordedWorkload, tmp_path: Path) -> None:
    plan = Comparison(("learned", "random"), seeds=3, limit=4)
    scores = compare(space, plan, Nobody())
    path = tmp_path / "a.json"
    path.write_text(json.dumps(codec.dump(document(plan, [(space, scores)]))))
    again = read(path, 4)[space.name]
    for before, after in zip(scores, again, strict=True):
        assert (after.strategy, after.n_seeds, after.needed, after.behind) == (
            before.strategy,
            before.n_seeds,
            before.needed,
            before.behind,
        )
        for quantile, curve in before.curve.items():
            assert after.curve[quantile] == pytest.approx(curve, abs=1e-5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "JSON"),
        ("[]", "is not a result of bench-search --json"),
        ('{"schema": "x"}', "schema x is not"),
        ('{"schema": "fa-tune-bench-search-1"}', "'plan' is missing"),
        (
            '{"schema": "fa-tune-bench-search-1", "plan": {"limit": 9}, "spaces": []}',
            "a limit of 9, not 4",
        ),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(ProfileFormatError, match=message):
        read(path, 4)
    with pytest.raises(StorageError, match="cannot read"):
        read(tmp_path / "none.json", 4)
