"""Kernels emulated with many schedules.  All of a code-path sample or of the `fast` sets, on small
workloads; or kernels and problems at random (see drawing.py):

    python -m tests.kernels.emulated.campaign --family sm90 --sample fast --repeats 20 --seed 0
    python -m tests.kernels.emulated.campaign --family sm90 --draw packed --kernels 40 --seed 0

One line for each kernel; the exit status is 1 if something was found.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fa_tune import families
from fa_tune.build.compile import BuildRequest
from fa_tune.core.workload import DType
from tests.kernels.emulated.drawing import KINDS, draw_kernel
from tests.kernels.emulated.emulation import build, compiler
from tests.kernels.emulated.fuzzing import Found, judge_drawn
from tests.kernels.emulated.judging import Verdict, judge
from tests.tools import required, required_sm90

ARCH = "sm_90"  # with the copies that only it has
# What is drawn for a family.
KINDS_OF = {
    "sm80": ("dense", "data", "packed"),
    "sm90": ("dense", "data", "packed"),
    "decode": ("dense", "data", "decode"),
}
LIMIT_S = 600.0  # for all problems of a kernel


def code_paths(family: str) -> list[BuildRequest]:
    """The code-path sample of a family: together its kernels take every pair of choices."""
    if family == "sm90":
        return required_sm90.code_path_builds()
    if family == "decode":
        return fast(family)  # few knobs, and each of them is there
    return required.code_path_builds(ARCH, required.ALL_D_HEADS)


def fast(family: str) -> list[BuildRequest]:
    """The `fast` sets of all d_head, with all traits; types in turn."""
    found: list[BuildRequest] = []
    for d_head in required.ALL_D_HEADS:
        for config in families.get(family).configs("fast", dtypes=[DType.FP16], d_head=d_head):
            dtype = list(DType)[len(found) % len(DType)]
            variant = families.variant(dataclasses.replace(config, dtype=dtype))
            found.append(BuildRequest(variant, "causal+ragged+lse", ARCH))
    return found


SAMPLES = {"paths": code_paths, "fast": fast}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", choices=KINDS_OF, default="sm90")
    parser.add_argument("--sample", choices=SAMPLES, default="paths")
    parser.add_argument("--repeats", type=int, help="launches of a problem beside its first")
    parser.add_argument("--seed", type=int, default=0, help="of schedules, and of what is drawn")
    parser.add_argument("--first", type=int, default=0, help="kernel, from 0")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--draw", choices=KINDS, help="kernels and problems at random, of a kind")
    parser.add_argument("--kernels", type=int, default=20, help="to draw")
    parser.add_argument("--problems", type=int, default=5, help="to draw for each of these")
    options = parser.parse_args(arguments)
    if options.repeats is None:
        options.repeats = 1 if options.draw else 20
    if options.repeats < 0 or options.jobs < 1 or options.first < 0:
        parser.error("--repeats and --first are at least 0, --jobs at least 1")
    if options.draw not in (None, *KINDS_OF[options.family]):
        kinds = ", ".join(KINDS_OF[options.family])
        parser.error(f"--family {options.family} has no {options.draw}; --draw one of {kinds}")
    if compiler() is None:
        parser.error("there is no C++ compiler that knows C++20 and fp16; name one in CXX")
    jobs = _drawn(options) if options.draw else _sampled(options)
    if not jobs:
        parser.error("--first is within the sample")
    launches = found = problems = 0
    share = 0.0
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        for line in pool.map(lambda job: job(Path(folder)), jobs):
            launches += line.launches
            problems += line.problems
            found += bool(line.findings)
            share = max(share, line.share)
            print(line, flush=True)
    seconds = time.monotonic() - began
    of_problems = f" of {problems} problems, at most {share:.2f} of the limit" if problems else ""
    print(
        f"{len(jobs)} kernels, {launches} launches{of_problems}, {found} not right, {seconds:.0f} s"
    )
    return 1 if found else 0


@dataclass(frozen=True)
class Line:
    """What is said of a kernel.  `share`: of the root mean square error that is allowed."""

    kernel: str
    launches: int
    findings: tuple[str, ...]
    problems: int = 0
    share: float = 0.0

    def __str__(self) -> str:
        said = "; ".join(self.findings) or "right"
        of_limit = f", at most {self.share:.2f} of the limit" if self.problems else ""
        return f"{self.kernel}: {self.launches} launches{of_limit}, {said}"


Job = Callable[[Path], Line]


def _sampled(options: argparse.Namespace) -> list[Job]:
    """The kernels of a sample, on small workloads."""

    def job(request: BuildRequest, folder: Path) -> Line:
        try:
            kernel = build(request, folder)
        except ValueError as error:
            verdict = Verdict(0, (str(error)[:2000],))
        else:
            verdict = judge(kernel, repeats=options.repeats, seed=options.seed)
        name = f"{request.variant.key} @ {request.traits}"
        return Line(name, verdict.launches, verdict.findings)

    return [partial(job, r) for r in SAMPLES[options.sample](options.family)[options.first :]]


def _drawn(options: argparse.Namespace) -> list[Job]:
    """Kernels at random, on problems at random."""

    def job(number: int, folder: Path) -> Line:
        seed = f"{options.seed}/{number}"
        drawn = draw_kernel(options.family, options.draw, seed)
        try:
            found = judge_drawn(
                *(drawn, folder),
                problems=options.problems,
                repeats=options.repeats,
                seed=seed,
                limit_s=LIMIT_S,
            )
        except ValueError as error:
            found = Found(0, 0, (str(error)[:2000],), 0.0)
        name = f"{number} {drawn.request.variant.key} @ {drawn.request.traits}"
        return Line(name, found.launches, found.findings, found.problems, found.share)

    return [partial(job, options.first + i) for i in range(options.kernels)]


if __name__ == "__main__":
    sys.exit(main())
