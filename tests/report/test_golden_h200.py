"""The two ncu files recorded on an H200 (45 configs, FA2, cuDNN), from file to figures.

Durations are ncu's, one launch each on a cool chip at 1.6-1.8 GHz, so the rates lie above
those of a sustained run on the same model (318 and 539 TFLOP/s for FA2 and cuDNN at 1024);
the ratios to FA2 are what must agree between the two ways of measuring.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.model import Outcome
from fa_tune.core.workload import DType
from fa_tune.report.load import load_report_source
from fa_tune.store.table.partial_workload import PartialWorkload as Stated
from fa_tune.store.table.rows import Row, best

DATA = Path(__file__).parent / "data"
SEQ_1024 = DATA / "details_h200_seq1024.csv"
SEQ_4096 = DATA / "raw_h200_seq4096.csv"
FIRST = "(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles"


def _load(path: Path, **stated: Any) -> list[Row]:
    notes: list[str] = []
    rows = load_report_source(path, Stated(**stated), on_note=notes.append)
    assert not [n for n in notes if "assumed" not in n and "taken from the other" not in n]
    return rows


def _by_kernel(rows: list[Row]) -> dict[str, Row]:
    found = {row.kernel: row for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.mark.parametrize(("path", "seq_len"), [(SEQ_1024, 1024), (SEQ_4096, 4096)])
def test_every_launch_has_a_row_with_the_workload_of_its_grid(path: Path, seq_len: int) -> None:
    rows = _load(path)
    assert len(rows) == 47
    for row in rows:
        assert row.outcome is Outcome.OK
        assert row.reason == ""
        assert row.n == 1
        w = row.workload
        assert w is not None
        assert (w.seq_len_q, w.seq_len_kv, w.batch, w.heads, w.kv_heads) == (
            (seq_len, seq_len, 16, 16, 16)
        )
        assert (w.d_head, w.dtype, w.causal) == (128, DType.FP16, False)


@pytest.mark.parametrize("path", [SEQ_1024, SEQ_4096])
def test_references_come_first_then_ascending_duration(path: Path) -> None:
    rows = _load(path)
    assert [row.kernel for row in rows[:2]] == ["FA2", "cuDNN"]
    durations = [row.duration_s for row in rows[2:]]
    assert durations == sorted(durations, key=lambda d: d or 0.0)
    assert best(rows) is rows[2]
    assert rows[-1].kernel == FIRST


# kernel -> duration in seconds as in the file, 4·s²·d rate worked out by hand from it.
FIGURES_1024 = {
    "FA2": (417.728e-6, 329.0),
    "cuDNN": (233.952e-6, 587.5),
    "(FP16, 128, 128, 64, 4): async+eager+swizzled+load_2_2_2_tiles+opt_softmax": (
        398.24e-6,
        345.1,
    ),
    FIRST: (2438.304e-6, 56.4),
}
FIGURES_4096 = {
    "FA2": (6003.424e-6, 366.3),
    "cuDNN": (3332.928e-6, 659.8),
    "(FP16, 128, 128, 64, 4): async+eager+swizzled+load_2_2_2_tiles": (5764.608e-6, 381.5),
    FIRST: (37522.176e-6, 58.6),
}


@pytest.mark.parametrize(("path", "figures"), [(SEQ_1024, FIGURES_1024), (SEQ_4096, FIGURES_4096)])
def test_durations_and_rates(path: Path, figures: dict[str, tuple[float, float]]) -> None:
    rows = _by_kernel(_load(path))
    for kernel, (duration_s, rate) in figures.items():
        assert rows[kernel].duration_s == pytest.approx(duration_s, rel=1e-12)
        assert rows[kernel].matmul_tflops == pytest.approx(rate, abs=0.06)


# Ratios of a sustained event-timed run: best of 45 over FA2, cuDNN over FA2, first over FA2.
@pytest.mark.parametrize(
    ("path", "best_ratio", "cudnn_ratio", "first_ratio"),
    [
        (SEQ_1024, 334 / 318, 539 / 318, 56 / 318),
        (SEQ_4096, 350 / 334, 560 / 334, 59 / 334),
    ],
)
def test_ratios_agree_with_a_sustained_run(
    path: Path, best_ratio: float, cudnn_ratio: float, first_ratio: float
) -> None:
    loaded = _load(path)
    rows, winner = _by_kernel(loaded), best(loaded)
    assert winner is not None
    assert winner.duration_percent_of_baseline == pytest.approx(100 * best_ratio, rel=0.01)
    # cuDNN draws the most power, so a sustained run slows it the most.
    assert rows["cuDNN"].duration_percent_of_baseline == pytest.approx(100 * cudnn_ratio, rel=0.08)
    assert rows[FIRST].duration_percent_of_baseline == pytest.approx(100 * first_ratio, rel=0.10)


def test_counters_of_the_details_page() -> None:
    row = _by_kernel(_load(SEQ_1024))["FA2"]
    assert row.cycles == 736_994  # the only cycle counter this page has
    assert row.registers == 255
    assert row.l2_hit_percent == pytest.approx(79.8)
    assert row.sm_clock_hz == pytest.approx(1_754_520_285.93)
    row = _by_kernel(_load(SEQ_4096))["FA2"]
    assert row.cycles == 10_881_753  # sm__cycles_elapsed.max
    assert row.registers == 255
    assert row.l2_hit_percent == pytest.approx(93.88)
    assert row.sm_clock_hz is None  # not collected: nothing, not zero


def test_tiled_rate_counts_the_tile_of_the_name() -> None:
    rows = _by_kernel(_load(SEQ_1024))
    # FA2's name shows 128x64: per tile 4·128·64·128 + 128·(4·64 + 128 + 4), plus 128·128.
    per_head = 8 * (16 * (4 * 128 * 64 * 128 + 128 * (4 * 64 + 132)) + 128 * 128)
    assert rows["FA2"].tflops == pytest.approx(256 * per_head / 417.728e-6 / 1e12)
    # cuDNN's shows 64x128; the count does not depend on the rows of a tile.
    per_head = 1024 * (8 * (4 * 128 * 128 + 4 * 128 + 132) + 128)
    assert rows["cuDNN"].tflops == pytest.approx(256 * per_head / 233.952e-6 / 1e12)
    flop = 256 * (4 * 1024**2 * 128 + 6 * 1024**2)
    assert rows["cuDNN"].attn_tflops == pytest.approx(flop / 233.952e-6 / 1e12)


@pytest.mark.parametrize(
    "stated", [{"batch": 4}, {"seq_len": 512}, {"d_head": 64}, {"heads": 8}, {"dtype": DType.BF16}]
)
def test_options_do_not_replace_what_name_and_grid_say(stated: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig, match="leave that option out"):
        _load(SEQ_1024, **stated)
    said = {"batch": 16, "seq_len": 1024, "d_head": 128, "heads": 16, "dtype": DType.FP16}
    assert _load(SEQ_1024, **said) == _load(SEQ_1024)
