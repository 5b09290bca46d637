"""Decoding as a workload, from a shell: lengths and pages on the device, beside a bare read."""

import json
from pathlib import Path
from typing import Any

import pytest

from fa_tune.core.workload import Workload
from fa_tune.operations.flops import moved_bytes
from tests.gpu.conftest import fa_tune

pytestmark = pytest.mark.gpu

SIZES = ["--seq-lens", "1", "--seq-lens-kv", "8192", "--heads", "64", "--kv-heads", "8"]
CACHES = (
    [],
    ["--cache-lengths", "lognormal-1-0"],
    ["--page-size", "16"],
    ["--cache-lengths", "uniform-1", "--page-size", "256", "--mask", "causal", "--lse"],
)


def result(folder: Path, *arguments: str) -> dict[str, Any]:
    """What a command prints as JSON, with files of its own."""
    return fa_tune(*arguments, *SIZES, "--cache-dir", str(folder / "cache"))


@pytest.mark.parametrize("cache", CACHES, ids=" ".join)
def test_a_search_verifies_measures_and_keeps_a_choice(tmp_path: Path, cache: list[str]) -> None:
    kept = ["--registry", str(tmp_path / "registry.json"), "--profiler", "events"]
    found = result(
        tmp_path,
        *("search", "--batch", "4", "--dtype", "bf16", "--family", "decode"),
        *("--runs", "3", "--ref", "read"),
        *(*kept, *cache),
    )
    (one,) = found["workloads"]
    rows = {row["kernel"]: row for row in one["rows"]}
    assert all(row["outcome"] == "ok" for row in rows.values()), rows
    assert one["decision"]["chosen"]["subject"].startswith("decode:")
    assert 0.2 < one["memory"]["of_read"] < 1.1
    workload = Workload.from_key(one["workload"])
    assert rows["bare read"]["bytes_per_s"] == pytest.approx(
        moved_bytes(workload) / rows["bare read"]["median_s"]
    )
    (entry,) = json.loads((tmp_path / "registry.json").read_text())["entries"]
    assert entry["workload"] == workload.key
    assert entry["verdict"]["correct"]


@pytest.mark.parametrize("combine", ["", "+combine_kernel", "+combine_all"])
def test_ncu_counts_all_launches_of_a_call(tmp_path: Path, combine: str) -> None:
    """The kernel that combines is a launch of its own: its time is part of the variant's."""
    config = f"decode(BF16, 128, 16, 128, 8): stages_2{combine}"
    found = result(
        tmp_path,
        *("profile", config, "--profiler", "ncu", "--runs", "3", "--batch", "1", "--ref", "read"),
    )
    rows = {row["kernel"]: row for row in found["rows"]}
    assert rows[config]["n"] == 3
    assert rows[config]["duration_s"] > rows["bare read"]["duration_s"] > 0


def test_batches_of_a_grid_are_workloads_of_one_search(tmp_path: Path) -> None:
    found = result(
        tmp_path,
        *("bench", "--kernels", "decode(BF16, 128, 16, 128, 8): stages_2", "--batch", "1,4"),
        *("--ref", "read", "--runs", "3"),
    )
    timings = found["timings"]
    assert len({timing["workload"] for timing in timings}) == 2
    assert all(timing["outcome"] == "ok" and timing["bytes_per_s"] > 0 for timing in timings)
