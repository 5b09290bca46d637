"""compute-sanitizer finds nothing in the kernels that together take every code path: every pair
of values of knobs, d_head and traits, new knobs included (tests/tools/required.py)."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from fa_tune.jobs import ChildEnd, run_child
from fa_tune.model import Artifact, Outcome
from fa_tune.pipeline.checks import HANDLER, verdict_key
from fa_tune.verify import verdict_from_json
from tests.gpu.conftest import Built
from tests.gpu.faulty_kernels import compile_faulty, disguised
from tests.tools.required import ALL_D_HEADS, code_path_builds

pytestmark = [pytest.mark.gpu, pytest.mark.xdist_group("gpu")]

FOUND_SOMETHING = 9
# A read beyond one tensor must not end in the next one: each is an allocation of its own,
# followed by more room than a tile of rows takes.
MEMCHECK_OPTIONS = {
    "--padding": str(1 << 18),
    "--report-api-errors": "no",  # torch asks for things that a driver need not have
}
ENVIRONMENT = {"CUDA_MODULE_LOADING": "LAZY", "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}


@cache
def sanitizer() -> tuple[str, str]:
    """The program and its help."""
    for candidate in ("compute-sanitizer", "/usr/local/cuda/bin/compute-sanitizer"):
        if path := shutil.which(candidate):
            done = subprocess.run([path, "--help"], capture_output=True, text=True, timeout=60)
            return path, done.stdout + done.stderr
    pytest.skip("compute-sanitizer is not installed")


def run(
    tool: str, handler: str, artifacts: Sequence[Artifact], folder: Path
) -> tuple[ChildEnd, str]:
    """One worker under the tool; how it ended and what the tool said."""
    program, help_text = sanitizer()
    wrapper = [program, "--tool", tool, "--error-exitcode", str(FOUND_SOMETHING)]
    wrapper += ["--log-file", "{run_dir}/sanitizer.log"]
    for option, value in MEMCHECK_OPTIONS.items() if tool == "memcheck" else ():
        if option in help_text:
            wrapper += [option, value]
    items = {
        verdict_key(a): {
            "subject": a.variant.key,
            "traits": a.traits,
            "cubin": a.cubin,
            "symbol": a.symbol,
        }
        for a in artifacts
    }
    end = run_child(
        handler,
        {"device": 0, "seed": 0},
        items,
        run_dir=folder,
        item_timeout_s=300,
        start_timeout_s=300,
        exit_timeout_s=300,
        wrapper=wrapper,
        env=ENVIRONMENT,
    )
    log = folder / "sanitizer.log"
    assert log.exists(), f"{end.reason}; {end.stderr_tail}"
    return end, log.read_text(errors="replace")


def assert_clean(end: ChildEnd, log: str, n_items: int, summary: str) -> None:
    """Every item got through, and the tool counted nothing."""
    assert summary in log, log[-3000:]
    failed = {k: r.reason for k, r in end.results.items() if r.outcome is not Outcome.OK}
    assert not failed
    assert end.finished, end.reason
    assert end.exit_code == 0
    assert len(end.results) == n_items


def test_memcheck_of_every_code_path(built: Built, arch: str, tmp_path: Path) -> None:
    """Through the product's own check, so that the results are looked at as well."""
    artifacts = built(code_path_builds(arch, ALL_D_HEADS))
    end, log = run("memcheck", HANDLER, artifacts, tmp_path)
    assert_clean(end, log, len(artifacts), "ERROR SUMMARY: 0 errors")
    verdicts = {key: verdict_from_json(r.value) for key, r in end.results.items() if r.value}
    assert {key: v.reason for key, v in verdicts.items() if not v.correct} == {}
    assert len(verdicts) == len(artifacts)


def test_racecheck_of_every_code_path(built: Built, arch: str, tmp_path: Path) -> None:
    artifacts = built(code_path_builds(arch, ALL_D_HEADS))
    end, log = run("racecheck", "tests.gpu.launch_child:handle", artifacts, tmp_path)
    assert_clean(end, log, len(artifacts), "RACECHECK SUMMARY: 0 hazards")


def test_memcheck_would_find_something(built: Built, arch: str, tmp_path: Path) -> None:
    """Otherwise its silence above would mean nothing."""
    good, bad = built(code_path_builds(arch))[:2]
    cubin = compile_faulty(tmp_path, arch, 128)
    bad = disguised(bad, cubin, "illegal_address")
    handler = "tests.gpu.launch_child:handle"
    end, log = run("memcheck", handler, [good, bad], tmp_path / "run")
    assert end.results[verdict_key(good)].outcome is Outcome.OK
    assert end.results[verdict_key(bad)].outcome is Outcome.CRASHED
    assert end.exit_code != 0
    assert "Invalid __global__ write" in log
    found = re.search(r"ERROR SUMMARY: (\d+) errors?", log)
    assert found is not None
    assert int(found[1]) > 0
