"""Watched maxima on the host: a warpgroup whose last tile was often corrected takes maxima in every
block of the next one, all of its warps or none, and others do not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fa_tune.core.workload import Workload
from tests.kernels.emulated.emulation import Emulated, EmulationFailed, build_changed, schedules
from tests.kernels.emulated.problems import Problem, attention, to_bits, to_float

WORDS = "stages_2+q_stages_2+pingpong+overlap+cross_tile_overlap+watched_max+dynamic"
IN_TURN = f"sm90(FP16, 64, 128x64): {WORDS}+rows_in_turn+adaptive_max"
TOGETHER = f"sm90(FP16, 64, 192x64): {WORDS}+single_loop"
APART = f"sm90(FP16, 64, 64x64): {WORDS}".replace("q_stages_2+pingpong+", "")
CONFIGS = (IN_TURN, TOGETHER, APART)
BLOCKS, TILES = 8, 4  # of a head, which a CTA takes in turn
NOISE, FAR = 0.3, 20.0  # nats
MOST = 1.2  # times the error of weights of which the largest is 1

# O does not follow maxima of a watched tile.
LOST = ("sm90/fwd/consumer.cuh", r"products\.scale_output\(a\);(\s+softmax\.look)", r"\1")


def _excess(kernel: Emulated, far: slice) -> float:
    """The root mean square error over that of weights of which the largest is 1, where every row of
    a warp that `far` has of its 16 has a key of its own."""
    c = kernel.config
    keys = BLOCKS * c.B_c
    w = Workload(1, 2, 1, TILES * c.B_r, keys, c.d_head, c.dtype, lse=True)
    problem = Problem.draw(w, "plain", 0)
    dice = np.random.default_rng(1)
    rows = w.seq_len_q
    k = dice.standard_normal((keys, w.d_head))
    q = dice.standard_normal((rows, w.d_head)) * NOISE / (w.scale * np.sqrt(w.d_head))
    chosen = np.zeros((rows // 16, 16), bool)
    chosen[far] = True
    own = np.where(chosen.ravel(), dice.integers(0, keys, rows), -1)
    far_rows = own >= 0
    directions = k[own[far_rows]]
    q[far_rows] += FAR / w.scale * directions / np.square(directions).sum(-1, keepdims=True)
    problem.q[0], problem.k[0, :, 0] = to_bits(q, w.dtype)[:, None], to_bits(k, w.dtype)
    try:
        out, _ = kernel.launch(problem, next(iter(schedules(0))))
    except EmulationFailed:
        return np.inf
    exact, same, _ = attention(problem)
    given = to_float(out.inside, w.dtype)
    return float(np.sqrt(np.square(given - exact).mean() / np.square(same - exact).mean()))


ALL_WARPS, ONE_WARP, NO_WARP = slice(None), slice(1, None, 4), slice(0, 0)


@pytest.mark.parametrize("far", [ALL_WARPS, ONE_WARP], ids=["all warps", "one warp"])
@pytest.mark.parametrize("short_form", CONFIGS)
def test_far_keys_are_followed(short_form: str, far: slice, libraries: Path) -> None:
    assert _excess(build_changed(short_form, "lse", libraries), far) < MOST


@pytest.mark.parametrize("short_form", CONFIGS)
def test_tiles_with_far_keys_are_watched_and_others_are_not(
    short_form: str, libraries: Path
) -> None:
    kernel = build_changed(short_form, "lse", libraries, *LOST)
    assert not _excess(kernel, ALL_WARPS) < MOST
    assert _excess(kernel, NO_WARP) < MOST
