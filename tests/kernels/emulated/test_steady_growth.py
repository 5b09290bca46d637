"""Maxima that grow from block to block, on the host: so steadily that those of a sample are taken,
and then a score that no sample has and that is far above."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fa_tune.core.workload import Workload
from tests.kernels.emulated.emulation import Emulated, build_changed, schedules
from tests.kernels.emulated.problems import Problem, faults, to_bits

WORDS = "stages_2+q_stages_2+pingpong+overlap+cross_tile_overlap+stale_max+dynamic+adaptive_max"
IN_TURN = f"sm90(FP16, 64, 128x64): {WORDS}".replace("+adaptive", "+rows_in_turn+adaptive")
TOGETHER = f"sm90(BF16, 64, 192x64): {WORDS}"
BLOCKS = 15  # a sample that is not followed shows in the last block
# Nats by which a block is above the one before it, of the first ones that are visited, so that
# maxima come first.
FIRST_STEP, FIRST_BLOCKS = 20.0, 4
# The same of the others, and by how much one key is above its block.
GROWTHS = ((2.5, 0.0), (12.0, 120.0))
FAR_BLOCK, FAR_COLUMN = 2, 45  # that key, in no sample

# (config, file, pattern, replacement), each found at one place.
MUTANTS = {
    "sums do not show that a sample was too low": (
        IN_TURN, "sm90/fwd/softmax.cuh", r"again = again \|\| sums\.row\[0\][^;]*;", "",
    ),
    "the same with rows together": (
        TOGETHER, "sm90/fwd/softmax.cuh", r"again = again \|\| sums\.row\[0\][^;]*;", "",
    ),
    "O is not brought to the second row's sample": (
        IN_TURN, "sm90/fwd/consumer.cuh",
        r"(softmax\.template refresh_max_after<Rows::kSampled>[^;]*;)", r"\1 a[1] = 1.f;",
    ),
    "O is not brought to the first row's sample": (
        IN_TURN, "sm90/fwd/consumer.cuh",
        r"(softmax\.refresh_max\(products\.s, a, 0, block == 0, true\);)", r"\1 a[0] = 1.f;",
    ),
}  # fmt: skip


def _faults(kernel: Emulated) -> list[str]:
    c = kernel.config
    keys = BLOCKS * c.B_c
    workload = Workload(1, 1, 1, c.B_r, keys, c.d_head, c.dtype, lse=True)
    found = []
    for step, above in GROWTHS:
        problem = Problem.draw(workload, "plain", 0)
        block, column = np.divmod(np.arange(keys), c.B_c)
        visited = BLOCKS - 1 - block
        first = np.minimum(visited, FIRST_BLOCKS)
        height = FIRST_STEP * (first - FIRST_BLOCKS) + step * (visited - first)
        height += above * ((block == FAR_BLOCK) & (column == FAR_COLUMN))
        problem.q[..., 0] = to_bits(np.array(1.0), c.dtype)
        problem.k[..., 0] = to_bits(height / workload.scale, c.dtype)[None, :, None]
        out, lse = kernel.launch(problem, next(iter(schedules(0))))
        found += faults(problem, out, lse)
    return found


@pytest.mark.parametrize("short_form", [IN_TURN, TOGETHER])
def test_steady_growth_is_followed(short_form: str, libraries: Path) -> None:
    assert _faults(build_changed(short_form, "lse", libraries)) == []


@pytest.mark.parametrize("name", MUTANTS)
def test_samples_that_are_not_enough_are_noticed(name: str, libraries: Path) -> None:
    short_form, *change = MUTANTS[name]
    assert _faults(build_changed(short_form, "lse", libraries, *change))
