"""Defaults beside all else that was measured of a workload: benchmarks/short_h200.txt, for short
sequences, head_dims_h200.txt, for head dimensions that are no multiple of 64, few_keys_h200.txt and
packed_tiles_h200.txt, for keys of one or two blocks and short sequences of a packed batch, and
few_rows_h200.tsv, for few queries of heads that share no K and V."""

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


@pytest.mark.parametrize(
    ("name", "most", "mean", "problems"),
    [
        ("short_h200.txt", 1.1, 1.02, 70),
        ("head_dims_h200.txt", 1.1, 1.02, 130),
        ("few_keys_h200.txt", 1.2, 1.02, 140),
        ("packed_tiles_h200.txt", 1.2, 1.05, 110),
    ],
)
def test_a_default_is_near_the_fastest_that_was_measured(
    name: str, most: float, mean: float, problems: int
) -> None:
    recorded, losses = _recorded(name), {}
    for key in recorded:
        default, *_ = families.defaults_for(Workload.from_key(key), H200)
        kernels = {s: time for s, time in recorded[key].items() if s not in LIBRARIES}
        if str(default) in kernels:  # else it came later
            losses[key] = kernels[str(default)] / min(kernels.values())
    assert len(losses) >= problems
    assert max(losses.values()) <= most, max(losses, key=losses.__getitem__)
    assert statistics.fmean(losses.values()) <= mean


def test_few_rows_that_share_nothing_have_the_faster_family() -> None:
    losses = []
    for line in (BENCHMARKS / "few_rows_h200.tsv").read_text(encoding="utf-8").splitlines():
        if line.count("\t") == 3:
            key, *cells, _ = line.split("\t")
            times = {name: float(time) for name, time in (cell.split("=") for cell in cells)}
            default, *_ = families.defaults_for(Workload.from_key(key), H200)
            losses.append(times[families.of(default).name] / min(times.values()))
    assert len(losses) > 400
    assert max(losses) < 1.7
    assert statistics.fmean(losses) < 1.05
