"""Isolated and sustained times of one kernel and a library, from the command to the recording."""

from pathlib import Path

import pytest

from fa_tune import families
from fa_tune.core.arch import parse_arch
from fa_tune.core.options import REGIMES, MachineOptions
from fa_tune.core.workload import DType
from fa_tune.store import recordings
from tests.gpu.conftest import fa_tune

pytestmark = pytest.mark.gpu

ROUNDS = 2


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("inputs", ["trained", "falling"])
def test_a_bench_is_labelled_from_the_table_to_the_recording(
    regime: str, inputs: str, tmp_path: Path, arch: str, machine: MachineOptions
) -> None:
    default, *_ = families.defaults(64, DType.FP16, parse_arch(arch))
    config = families.variant(default)
    asked = ["--d-head", "64", "--dtype", "fp16", "--seq-lens", "512", "--inputs", inputs]
    asked += ["--regime", regime, "--runs", str(ROUNDS), "--ref", "fa2"]
    places = ["--cache-dir", str(machine.cache_dir), "--record", str(tmp_path)]
    timings = fa_tune("bench", "--kernels", config.config, *asked, *places)["timings"]
    method = "events" if regime == "isolated" else "sustained"
    assert len(timings) == 2
    for timing in timings:
        assert timing["outcome"] == "ok", timing["reason"]
        assert (timing["method"], timing["inputs"], timing["n"]) == (method, inputs, ROUNDS)
    (recording,) = recordings.load_all(tmp_path)
    assert recording.path.name.endswith(f"_{inputs}_{method}.csv")
    assert recording.meta.inputs == inputs
    assert {a.measurement.method for a in recording.attempts if a.measurement} == {method}


def test_short_decoding_is_timed_in_graphs(tmp_path: Path, machine: MachineOptions) -> None:
    """Its kernels have a workspace, which is there before a graph of many input sets begins."""
    asked = ["--family", "decode", "--dtype", "bf16", "--heads", "64", "--kv-heads", "8"]
    asked += ["--seq-lens", "1", "--seq-lens-kv", "1024", "--batch", "1", "--ref", "none"]
    places = ["--cache-dir", str(machine.cache_dir), "--record", str(tmp_path)]
    timings = fa_tune("bench", *asked, "--runs", "3", *places)["timings"]
    assert timings
    assert all(max(t["samples_s"]) < 2 * min(t["samples_s"]) for t in timings)
