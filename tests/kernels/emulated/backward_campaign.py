"""Backward kernels and problems at random, on the host.

    python -m tests.kernels.emulated.backward_campaign --family sm80 --kernels 40 --problems 10

prints a line for each kernel; the exit status is 1 if something was found.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from fa_tune import families
from fa_tune.core.arch import limits
from fa_tune.core.workload import DType
from fa_tune.families.sm80_bwd.config import Sm80BackwardConfig
from tests.kernels.emulated.backward import MASKS, draw_kernel, judge
from tests.kernels.emulated.backward_kernels import Kernel
from tests.kernels.emulated.backward_problems import BackwardProblem, draw_problem
from tests.kernels.emulated.backward_sm80 import Sm80Kernel

# Of all shapes the warps and ways through shared memory; the heads are those of the draw.
SHAPES = (
    *((32, 32, 2, 1), (32, 64, 4, 2), (64, 32, 2, 2), (64, 64, 4, 1), (64, 64, 4, 2)),
    *((64, 64, 4, 4), (128, 64, 4, 1), (64, 128, 8, 2), (128, 32, 8, 8)),
)
HOPPER = limits((9, 0))
HEADS = (32, 64, 96, 128, 192, 256)


def draw_sm80_kernel(seed: str) -> Sm80Kernel:
    """A kernel that can run somewhere, of large blocks only where heads are small."""
    dice = random.Random(seed)
    while True:
        B_r, B_c, n_warps, column_warps = dice.choice(SHAPES)
        d_head, dtype = dice.choice(HEADS), dice.choice(list(DType))
        config = Sm80BackwardConfig(
            *(dtype, d_head, B_r, B_c, n_warps, column_warps, dice.choice((1, 2))),
            two_pass=dice.random() < 0.4,
            d_head_v=dice.choice((0, 0, 64, 128)),
        )
        if families.constraints(config, HOPPER) is None:
            traits = dice.choice(MASKS) or "plain"
            return Sm80Kernel(config, traits, dice.random() < 0.5)


DRAWS = {"sm90": draw_kernel, "sm80": draw_sm80_kernel}


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", choices=DRAWS, default="sm90")
    parser.add_argument("--kernels", type=int, default=20)
    parser.add_argument("--problems", type=int, default=5, help="of each kernel")
    parser.add_argument("--repeats", type=int, default=1, help="calls of a problem but its first")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="kernel, from 0")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()

    def job(number: int) -> bool:
        seed = f"{options.seed}/{number}"
        kernel = DRAWS[options.family](seed)
        said = judge(
            *(kernel, kernel.library(Path(folder)), partial(_drawn, kernel, seed)),
            count=options.problems,
            repeats=options.repeats,
            seed=number,
        )
        fields = ", ".join(map(str, vars(kernel).values()))
        print(f"{number} {fields}: {said.launches} calls, {'; '.join(said.findings) or 'right'}")
        sys.stdout.flush()
        return bool(said.findings)

    numbers = range(options.first, options.first + options.kernels)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        found = sum(pool.map(job, numbers))
    print(f"{options.kernels} kernels, {found} not right")
    return 1 if found else 0


def _drawn(kernel: Kernel | Sm80Kernel, seed: str, number: int) -> BackwardProblem:
    return draw_problem(kernel, f"{seed}/{number}")


if __name__ == "__main__":
    sys.exit(main())
