"""Defaults beside all else that was measured of a workload: benchmarks/short_h200.txt, for short
sequences, and head_dims_h200.txt, for head dimensions that are no multiple of 64."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from fa_tune import families
from fa_tune.core.arch import limits
from fa_tune.core.workload import Workload

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
H200 = limits((9, 0))
LIBRARIES = ("fa2", "cudnn")


def _recorded(name: str) -> dict[str, dict[str, float]]:
    """Microseconds of what was measured of each workload."""
    found: dict[str, dict[str, float]] = {}
    for line in (BENCHMARKS / name).read_text(encoding="utf-8").splitlines():
        if line.count("\t") == 2:
            key, time, subject = line.split("\t")
            found.setdefault(key, {})[subject] = float(time)
    return found


# Decoding's default at d_head 64 has blocks of 128 keys, which many tiles of few keys do not fill.
KNOWN = {f"b128_h16_kv16_{size}_d64_bf16_full" for size in ("q20_k20", "q32_k32", "q32_k128")}


@pytest.mark.parametrize(
    ("name", "most", "mean", "problems"),
    [
        ("short_h200.txt", 1.1, 1.02, 70),
        ("head_dims_h200.txt", 1.1, 1.02, 130),
    ],
)
def test_a_default_is_near_the_fastest_that_was_measured(
    name: str, most: float, mean: float, problems: int
) -> None:
    recorded, losses = _recorded(name), {}
    for key in recorded.keys() - KNOWN:
        default, *_ = families.defaults_for(Workload.from_key(key), H200)
        kernels = {s: time for s, time in recorded[key].items() if s not in LIBRARIES}
        if str(default) in kernels:  # else it came later
            losses[key] = kernels[str(default)] / min(kernels.values())
    assert len(losses) >= problems
    assert max(losses.values()) <= most, max(losses, key=losses.__getitem__)
    assert statistics.fmean(losses.values()) <= mean
