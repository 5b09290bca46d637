"""Exact maxima on the host: errors are those of rounded weights of which the largest is 1, whatever
block a row's largest score is in and whatever sign scores have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fa_tune.core.workload import Workload
from tests.kernels.emulated.emulation import Emulated, build_changed, schedules
from tests.kernels.emulated.problems import Problem, attention, to_bits, to_float

WORDS = "stages_2+q_stages_2+pingpong+overlap+cross_tile_overlap+exact_max+dynamic"
IN_TURN = f"sm90(FP16, 64, 128x64): {WORDS}+rows_in_turn"
TOGETHER = f"sm90(BF16, 64, 192x64): {WORDS}+single_loop"
SERIAL = "sm90(FP16, 64, 64x64): stages_2+exact_max"
CONFIGS = (IN_TURN, TOGETHER, SERIAL)
BLOCKS = 6
MOST = 1.1  # times the error of weights of which the largest is 1
# Nats by which all scores are moved, the standard deviation, and by how much each block is above
# the one before it.
KINDS = {
    "peaked": (0.0, 3.0, 0.0),
    "all negative": (-40.0, 3.0, 0.0),
    "falling": (0.0, 1.0, 3.0),
    "falling and negative": (-60.0, 1.0, 3.0),
    "alike and far below": (-1.5e5, 0.0, 0.0),
}
FAR_ROWS = slice(1, None, 3)  # with a key of their own, FAR nats above the others
FAR = 20.0
LARGE = 8.0  # times, in Q, so that fp16 has room for K
SPOILT, OTHER = 0, 8  # rows of one thread

SOFTMAX, CONSUMER = "sm90/fwd/softmax.cuh", "sm90/fwd/consumer.cuh"
# (config, kind, file, pattern, replacement), each found at one place.
MUTANTS = {
    "maxima are stale": (
        IN_TURN, "peaked", SOFTMAX, r"new_max = fmaxf\(row_max\[i\], most\);",
        "new_max = row_max[i];",
    ),
    "of negative scores the lowest is taken": (
        TOGETHER, "all negative", SOFTMAX, r"highest\[i\] = highest\[i\] < 0 [^;]*;", "",
    ),
    "O is not brought to new maxima": (
        SERIAL, "falling", CONSUMER, r"products\.scale_output\(a\);(\s+softmax\.look)", r"\1",
    ),
    "the rounding of a large m is not looked for": (
        SERIAL, "alike and far below", CONSUMER, r"softmax\.any_special &&", "false &&",
    ),
}  # fmt: skip


def _problem(kernel: Emulated, kind: str) -> Problem:
    c = kernel.config
    keys = BLOCKS * c.B_c
    w = Workload(1, 1, 1, c.B_r, keys, c.d_head, c.dtype, causal=False, lse=True)
    problem = Problem.draw(w, "plain", 0)
    dice = np.random.default_rng(1)
    move, sigma, step = KINDS[kind]
    q, k = dice.standard_normal((w.seq_len_q, w.d_head)), dice.standard_normal((keys, w.d_head))
    unit = 1.0 / np.sqrt(w.scale)
    q *= sigma * unit / np.sqrt(w.d_head)
    k *= unit
    if kind == "peaked":
        own = dice.integers(0, keys, w.seq_len_q)[FAR_ROWS]
        q[FAR_ROWS] += FAR / w.scale * k[own] / np.square(k[own]).sum(-1, keepdims=True)
    visited = BLOCKS - 1 - np.arange(keys) // c.B_c
    q[:, 0], k[:, 0] = LARGE * unit, (move + step * visited) * unit / LARGE
    problem.q[0, :, 0], problem.k[0, :, 0] = to_bits(q, w.dtype), to_bits(k, w.dtype)
    return problem


def _excess(kernel: Emulated, kind: str) -> float:
    """Its root mean square error over that of weights of which the largest is 1."""
    problem = _problem(kernel, kind)
    out, _ = kernel.launch(problem, next(iter(schedules(0))))
    exact, same, _ = attention(problem)
    given = to_float(out.inside, problem.workload.dtype)
    return float(np.sqrt(np.square(given - exact).mean() / np.square(same - exact).mean()))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("short_form", CONFIGS)
def test_the_largest_weight_is_exact(short_form: str, kind: str, libraries: Path) -> None:
    assert _excess(build_changed(short_form, "lse", libraries), kind) < MOST


@pytest.mark.parametrize("name", MUTANTS)
def test_a_maximum_that_is_not_is_noticed(name: str, libraries: Path) -> None:
    short_form, kind, *change = MUTANTS[name]
    assert not _excess(build_changed(short_form, "lse", libraries, *change), kind) < MOST


def test_a_row_of_nan_leaves_the_other_rows_of_its_thread(libraries: Path) -> None:
    kernel = build_changed(IN_TURN, "lse", libraries)
    problem = _problem(kernel, "falling and negative")
    exact, _, _ = attention(problem)
    problem.q[0, SPOILT] = to_bits(np.array(np.nan), problem.workload.dtype)
    out, _ = kernel.launch(problem, next(iter(schedules(0))))
    given = to_float(out.inside, problem.workload.dtype)[0]
    assert np.isnan(given[SPOILT]).all()
    assert np.abs(given[OTHER] - exact[0, OTHER]).max() < 0.01
