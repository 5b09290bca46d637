from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from tests.commands import fakes
from tests.commands.console import Console
from tests.commands.fakes import Put, Stub

pytestmark = pytest.mark.usefixtures("wide_terminal")


@pytest.fixture
def build(stub: Put) -> Stub:
    results = (
        fakes.build_result(fakes.FAST),
        fakes.build_result(fakes.SLOW, cached=True),
        fakes.build_result(fakes.BROKEN, ok=False),
    )
    return stub("fa_tune.tune.single.build", fakes.build_report(*results))


def test_table_diagnostics_and_failures(console: Console, build: Stub) -> None:
    done = console("build", "--arch", "sm_90", "--kernels", "prog", "-j", "3")
    assert done.status == 0
    kernels, d_heads, machine, _ = build.calls[0]
    assert (kernels, d_heads, machine.arch, machine.jobs) == ("prog", (128,), "sm_90", 3)
    (row,) = [x for x in done.out.splitlines() if x.startswith(f"| {fakes.FAST} ")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1:] == ["200", "0", "0", "0", "48", "2", "1.25"]
    lines = done.out.splitlines()
    assert "2 of 3 built for sm_90 with NVRTC 13.0.88, 1 of them from the cache." in lines
    assert f"diagnostic: {fakes.FAST}: a warning" in lines
    why = "compile failed: static assertion failed: B_r must be a multiple"
    assert f"failed: {fakes.BROKEN}: {why}" in lines
    assert f"rejected: {fakes.BROKEN}: smem_fits: needs 246 KiB" in lines


def test_json_and_csv_hold_failures_without_figures(
    console: Console, build: Stub, tmp_path: Path
) -> None:
    document = console("build", "--json", "--csv", "facts.csv").json
    assert [b["outcome"] for b in document["builds"]] == ["ok", "ok", "compile_failed"]
    assert document["builds"][2]["registers"] is None
    rows = list(csv.DictReader(io.StringIO((tmp_path / "facts.csv").read_text())))
    assert [row["registers"] for row in rows] == ["200", "200", ""]
    assert rows[0]["diagnostics"] == "a warning"
    assert [row["cached"] for row in rows] == ["false", "true", "false"]
    assert console("build", "--csv", "-").out == (tmp_path / "facts.csv").read_text()


def test_nothing_built_is_status_4_with_the_reason(console: Console, build: Stub) -> None:
    build.result = fakes.build_report(fakes.build_result(fakes.SLOW, ok=False))
    done = console("build")
    assert done.status == 4
    assert f"failed: {fakes.SLOW}" in done.out
    assert done.lines == [
        "error: nothing was built: static assertion failed: B_r must be a multiple"
    ]
