from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fa_tune.core.errors import StorageError
from fa_tune.core.workload import DType
from fa_tune.tune.results import WorkloadResult
from tests.commands import fakes
from tests.commands.console import Console, words
from tests.commands.fakes import Put, Stub


@pytest.fixture
def search(stub: Put) -> Stub:
    return stub("fa_tune.tune.flow.search", fakes.search_result())


def test_every_option_reaches_the_search(console: Console, search: Stub, tmp_path: Path) -> None:
    done = console(
        *words("search --seq-lens 1024,4096 --d-head 64,128 --dtype bf16 --batch 3 --heads 5"),
        *words("--kernels 64,32 --profiler events --runs 7 --ref fa2 --seed 9 --arch 90 --jobs 2"),
        *words("--family sm80,sm90 --devices 2,0"),
        *words("--device 1 --ncu /opt/ncu --clock-control base --fresh --limit 3 --quiet"),
        *words(f"--csv {tmp_path}/t.csv --registry {tmp_path}/r.json --record {tmp_path}/rec"),
        *words(f"--cache-dir {tmp_path}/c --recordings {tmp_path}/p"),
    )
    assert done.status == 0, done.err
    (o,) = search.options
    assert (o.workloads.seq_lens, o.workloads.d_heads) == ((1024, 4096), (64, 128))
    assert (o.workloads.dtypes, o.workloads.batches, o.workloads.heads) == ((DType.BF16,), (3,), 5)
    assert (o.families, o.kernels, o.resume) == (("sm80", "sm90"), "64,32", False)
    assert o.machine.devices == (2, 0)
    assert (o.measure.profiler, o.measure.runs, o.measure.seed) == ("events", 7, 9)
    assert (o.measure.references, o.measure.clock_control) == (("fa2",), "base")
    assert (o.machine.arch, o.machine.jobs, o.machine.device) == ("sm_90", 2, 1)
    assert (o.machine.ncu, o.machine.cache_dir) == (Path("/opt/ncu"), tmp_path / "c")
    assert o.machine.recordings == tmp_path / "p"
    assert (o.csv, o.registry) == (tmp_path / "t.csv", tmp_path / "r.json")
    assert o.record == tmp_path / "rec"


def test_the_search_is_told_what_was_typed(
    console: Console, search: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FA_TUNE_NCU", "/opt/ncu")
    given = ("--runs", "3", "--seed", "0", "--device", "0", "--ref", "none")
    assert console("search", *given).status == 0
    assert console("search", "--seed", "0", "--strategy", "random").status == 0
    first, second = search.options
    assert (first.measure.references, len(second.measure.references)) == ((), 2)
    assert first.measure.typed == {"runs", "references", "seed"}
    assert first.machine.typed == {"device"}
    assert second.measure.typed == set(), "a strategy draws by the seed in a replay too"


def test_options_of_the_problem(console: Console, search: Stub) -> None:
    done = console(
        *words("search --seq-lens 1,512 --seq-lens-kv 4096 --mask full,causal_br --kv-heads 4"),
        *words("--lse --softmax-scale 0.25 --dtype fp16 --batch 2"),
    )
    assert done.status == 0, done.err
    (o,) = search.options
    assert [w.key for w in o.workloads.workloads()] == [
        "b2_h16_kv4_q1_k4096_d128_fp16_full_lse_scale0.25",
        "b2_h16_kv4_q512_k4096_d128_fp16_full_lse_scale0.25",
        "b2_h16_kv4_q512_k4096_d128_fp16_causal_br_lse_scale0.25",
    ]


def test_option_over_environment_over_default(
    console: Console, search: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELS", "prog")
    monkeypatch.setenv("FA_TUNE_REGISTRY", "env.json")
    console("search")
    console("search", "--kernels", "all", "--registry", "given.json")
    monkeypatch.setenv("KERNELS", "")
    console("search")
    assert [o.kernels for o in search.options] == ["prog", "all", "fast"]
    assert [str(o.registry) for o in search.options[:2]] == ["env.json", "given.json"]


def test_summary_names_winner_ratios_failures_and_place(console: Console, search: Stub) -> None:
    search.result = fakes.search_result([fakes.workload_result(n) for n in (1024, 4096)])
    done = console("search", "--wide")
    lines = done.out.splitlines()
    assert done.lines[0] == fakes.WHOSE
    assert lines[-1] == f"Measurements: {fakes.WHOSE}."
    title = "seq_len 4096, d_head 128, FP16, full, batch 16, 16 heads; ncu"
    assert title in lines
    (line,) = [x for x in lines if x.startswith(f"{title}: ")]
    assert line.startswith(f"{title}: {fakes.FAST} is the fastest")
    assert "1.20x the speed of FA2" in line
    assert "0.80x the speed of cuDNN" in line
    assert "1 config is without a result." in line
    assert "the fastest and tied with nothing" in line
    assert "sm80:" not in line
    assert "Kept in kept/registry.json." in lines
    assert "Not tried: 1 config that cannot run here (1 by smem_fits)." in lines
    assert done.out.count("| * |") == 2


def test_json_is_all_that_stdout_gets(console: Console, search: Stub) -> None:
    done = console("search", "--json")
    document: dict[str, Any] = done.json
    assert document["schema"] == "fa-tune-search-1"
    assert document["whose"] == fakes.WHOSE
    assert document["rejected"][0]["constraint"] == "smem_fits"
    (one,) = document["workloads"]
    assert one["workload"] == fakes.workload().key
    assert one["decision"]["chosen"]["subject"] == fakes.key(fakes.FAST)
    assert one["decision"]["to_references"]["ref:fa2"]["value"] == pytest.approx(5 / 6, rel=1e-2)
    crashed = next(row for row in one["rows"] if row["outcome"] == "crashed")
    assert crashed["duration_s"] is None
    assert done.lines[-1] == f"Measurements: {fakes.WHOSE}."


def test_warnings_appear_once(console: Console, search: Stub) -> None:
    warnings = (fakes.WHOSE, "the clock moved", "another", "the clock moved")
    search.result = replace(fakes.search_result(), warnings=warnings)
    lines = console("search").lines
    assert lines == [fakes.WHOSE, "warning: the clock moved", "warning: another"]


def test_a_workload_without_a_choice_warns_and_the_others_count(
    console: Console, search: Stub
) -> None:
    lost = WorkloadResult(fakes.workload(512), (), None, "no recording holds it")
    search.result = fakes.search_result([fakes.workload_result(), lost])
    done = console("search")
    assert done.status == 0
    assert f"warning: {fakes.workload(512).key}: no recording holds it" in done.lines
    assert f"{fakes.workload(512).key}: nothing chosen: no recording holds it." in done.out
    lost = WorkloadResult(fakes.workload(512), (), None, "no recording holds it")
    search.result = fakes.search_result([lost])
    done = console("search")
    assert done.status == 4
    assert done.lines[-1].startswith("error: ")
    assert "Kept in" not in done.out


@pytest.mark.parametrize("limit", [1, 2])
def test_limit_cuts_the_tables_not_the_csv(console: Console, search: Stub, limit: int) -> None:
    table = console("search", "--limit", str(limit), "--wide").out
    assert "| * |" in table  # the winner is shown whatever the limit
    whole = console("search", "--limit", str(limit), "--csv", "-").out
    rows = list(csv.DictReader(io.StringIO(whole)))
    assert len(rows) == 5
    ours = [row for row in rows if row["family"] != "ref"]
    assert f"… {len(ours) - limit} more" in table


def test_a_registry_that_cannot_be_written_does_not_lose_the_table(
    console: Console, search: Stub
) -> None:
    error = StorageError("cannot write registry r.json: No space left on device")
    search.result = replace(fakes.search_result(), registry=None, not_kept=error)
    done = console("search")
    assert done.status == 3
    assert "seq_len 4096" in done.out
    assert done.lines[-1] == f"error: {error}"
