"""Results, spaces, registries and ncu's files as data frames."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from fa_tune.core.model import Outcome
from fa_tune.lab import space_table
from fa_tune.profile.ncu.parse import parse_ncu_csv
from fa_tune.report import frames
from fa_tune.report.load import load_report_source
from fa_tune.store.registry.schema import Registry
from fa_tune.store.table.rows import Row
from tests.profile.ncu.ncu_text import DURATION, identity, raw
from tests.project_files import ROOT

RECORDED = ROOT / "profiles" / "nvidia_h200" / "fast_ncu.csv"
SPACE = ROOT / "profiles" / "nvidia_h200" / "tune_ncu.space.csv.gz"


def test_results_hold_every_row_in_base_units() -> None:
    rows = load_report_source(RECORDED)
    frame = frames.results(rows)
    assert list(frame["kernel"]) == [row.kernel for row in rows]
    assert list(frame["median_s"]) == [row.median_s for row in rows]
    assert list(frame["workload"]) == [row.workload.key for row in rows if row.workload]
    assert frame.attrs["units"]["median_s"] == "s"
    fastest = frame[frame["family"] != "ref"].groupby("workload")["median_s"].min()
    for key, seconds in fastest.items():
        ours = [r for r in rows if r.is_variant and r.workload and r.workload.key == key]
        assert seconds == min(row.median_s for row in ours if row.median_s)


def test_types_do_not_depend_on_what_was_measured() -> None:
    whole = frames.results(load_report_source(RECORDED))
    failed = frames.results([Row("x", family="sm80", outcome=Outcome.CRASHED)])
    assert (whole.dtypes == failed.dtypes).all()
    assert failed["median_s"].isna().all()
    assert failed["registers"].isna().all()
    assert len(pd.concat([whole, failed])) == len(whole) + 1
    assert list(frames.results([]).columns) == list(whole.columns)
    known = {*frames.results([]).columns, *frames.registry(Registry.of()).columns}
    assert set(frames.UNITS) <= known


def test_spaces_hold_knobs_and_counters() -> None:
    table = space_table.load(SPACE)
    frame = frames.spaces([table])
    assert len(frame) == len(table.rows)
    row, first = table.rows[0], frame.iloc[0]
    assert first["variant"] == row.variant
    assert {name: first[f"knob.{name}"] for name in row.knobs} == dict(row.knobs)
    assert first["median_s"] == row.time_s
    assert frame.attrs["units"]["median_s"] == "s"


def test_launches_have_a_column_per_metric() -> None:
    columns = [(DURATION, "ns"), ("sm__x.avg", "%"), ("device__attribute_name", "")]
    cells = [["1,000", "5.25", "H200"], ["2,000", "n/a", "H200"]]
    frame = frames.launches(
        parse_ncu_csv(raw(columns, *((identity(i), c) for i, c in enumerate(cells))))
    )
    assert list(frame[DURATION]) == [1e-6, 2e-6]
    assert frame["sm__x.avg"].isna().tolist() == [False, True]
    assert list(frame["device__attribute_name"]) == ["H200", "H200"]
    assert frame.attrs["units"][DURATION] == "s"


def test_parquet_gives_the_same_frame_and_the_units(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow comes with the parquet extra")
    from pyarrow import parquet as files

    rows = load_report_source(RECORDED)
    path = tmp_path / "results.parquet"
    path.write_bytes(frames.parquet(rows))
    read, frame = pd.read_parquet(path), frames.results(rows)
    assert list(read.columns) == list(frame.columns)
    assert list(read["median_s"]) == list(frame["median_s"])
    assert [list(s) for s in read["samples_s"]] == [list(s) for s in frame["samples_s"]]
    metadata = files.read_schema(path).metadata
    assert metadata[b"unit:median_s"] == b"s"
    assert "pandas" in {name.decode() for name in metadata}
    assert json.loads(metadata[b"pandas"])["columns"]
