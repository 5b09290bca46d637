"""`fa-tune search --captured`: from a file to what was tuned for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fa_tune.store.capture.schema import Usage, to_json
from tests.commands import fakes
from tests.commands.console import Console
from tests.commands.fakes import Put, Stub
from tests.store.capture.captures import capture, usage


@pytest.fixture
def search(stub: Put) -> Stub:
    return stub("fa_tune.tune.flow.search", fakes.search_result())


def written(folder: Path, *usages: Usage) -> str:
    file = folder / "c.json"
    file.write_text(to_json(capture(*usages)))
    return str(file)


def test_each_workload_is_searched_with_the_options(
    console: Console, search: Stub, tmp_path: Path
) -> None:
    small = usage(10, 1e-3, seq_len_q=128, seq_len_kv=128, dtype="float16")
    file = written(tmp_path, small, usage(10, 1e-2, op="backward"), usage(5, 1e-3, dropout=True))
    csv = tmp_path / "t.csv"
    given = ("--kernels", "64,32", "--budget", "9,600s", "--csv", str(csv), "--json")
    done = console("search", "--captured", file, *given)
    assert done.status == 0, done.err
    asked = [options.workloads.workloads() for options in search.options]
    assert [(w.op, w.seq_len_q) for (w,) in asked] == [("backward", 1024), ("forward", 128)]
    for options in search.options:
        assert (options.kernels, options.measurements, options.seconds) == ("64,32", 9, None)
        assert options.csv is None
    assert len(done.json["workloads"]) == 2 * len(fakes.search_result().results)
    assert csv.exists()
    assert "dropout" in done.err


def test_what_cannot_be_searched(console: Console, search: Stub, tmp_path: Path) -> None:
    file = written(tmp_path, usage(10, None))
    assert console("search", "--captured", file).status == 4, "nothing was timed"
    assert console("search", "--captured", str(tmp_path / "none")).status == 3
    (tmp_path / "d.json").write_text("{}")
    assert console("search", "--captured", str(tmp_path / "d.json")).status == 5
    file = written(tmp_path, usage(dropout=True))
    assert console("search", "--captured", file).status == 4
    for words in (("--seq-lens", "512"), ("--op", "backward"), ("--why-stale",), ("--lse",)):
        assert console("search", "--captured", file, *words).status == 2
    assert console("search", "--captured", file, "--record", str(tmp_path)).status == 2
    assert not search.options
