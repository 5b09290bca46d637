"""Lengths of keys, alignments, log-sum-exp and softmax scale, from the command line to the GPU."""

from pathlib import Path

import pytest

from fa_tune import families
from fa_tune.core.workload import DType, Workload
from fa_tune.store.registry import file as registry_file
from tests.gpu.conftest import fa_tune

pytestmark = pytest.mark.gpu

FAMILY = families.get("sm80")
CONFIG = str(FAMILY.default_config(96, DType.BF16))
PROBLEM = ["--kv-heads", "4", "--batch", "2", "--lse", "--softmax-scale", "0.2"]
# Every workload is a process with torch in it, so they are few.
LENGTHS = ["--seq-lens", "300", "--seq-lens-kv", "200,513", "--mask", "causal,causal_br"]
WORKLOADS = {
    f"b2_h16_kv4_q300_k{kv}_d96_bf16_{mask}_lse_scale0.2"
    for kv in (200, 513)
    for mask in ("causal", "causal_br")
}


def test_every_problem_is_searched_and_references_solve_it_or_say_why_not(tmp_path: Path) -> None:
    registry = tmp_path / "registry.json"
    found = fa_tune(
        *("search", "--kernels", CONFIG, *PROBLEM, *LENGTHS, "--profiler", "events"),
        *("--runs", "2"),
        *("--registry", str(registry), "--cache-dir", str(tmp_path / "cache")),
    )
    assert {one["workload"] for one in found["workloads"]} == WORKLOADS
    for one in found["workloads"]:
        rows = {row["kernel"]: row for row in one["rows"]}
        assert rows[CONFIG]["outcome"] == "ok", rows[CONFIG]
        for name, words in (("FA2", "FlashAttention 2 in torch"), ("cuDNN", "cuDNN in torch")):
            row = rows[name]
            refused = row["outcome"] == "rejected" and row["reason"].startswith(words)
            assert row["outcome"] == "ok" or refused, row
        w = Workload.from_key(one["workload"])
        # FlashAttention 2 takes all but what has no name in torch.
        nameless = w.causal and not w.bottom_right and w.seq_len_q > w.seq_len_kv
        assert (rows["FA2"]["outcome"] == "ok") == (not nameless), rows["FA2"]
    kept = registry_file.load(registry).entries
    assert {entry.workload.key for entry in kept} == WORKLOADS
    assert all("lse" in entry.traits for entry in kept)
    assert all(entry.verdict is not None and entry.verdict.correct for entry in kept)


def test_run_verifies_and_times_them(tmp_path: Path) -> None:
    """Without a mask and with both, every one with and without odd lengths."""
    asked = ["--seq-lens", "300", "--seq-lens-kv", "513", "--mask", "full,causal_br"]
    asked += ["-n", "2", "--ref", "none", "--cache-dir", str(tmp_path / "cache")]
    found = fa_tune("run", CONFIG, *PROBLEM, *asked)
    timed = {Workload.from_key(t["workload"]).mask: t["outcome"] for t in found["timings"]}
    assert timed == {"full": "ok", "causal_br": "ok"}
    traits = {v["variant"].partition(" @ ")[2] for v in found["verdicts"]}
    assert traits == {"lse", "ragged+lse", "causal+lse", "causal+ragged+lse"}
    cases = [Workload.from_key(c["workload"]) for v in found["verdicts"] for c in v["cases"]]
    assert {w.mask for w in cases} == {"full", "causal", "causal_br"}
    assert all(v["correct"] for v in found["verdicts"])
