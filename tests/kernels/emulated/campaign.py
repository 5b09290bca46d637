"""All kernels of a code-path sample, or of the `fast` sets, emulated with many schedules:

    python -m tests.kernels.emulated.campaign --family sm90 --sample fast --repeats 20 --seed 0

One line for each kernel; the exit status is 1 if something was found.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fa_tune import families
from fa_tune.build.compile import BuildRequest
from fa_tune.core.workload import DType
from tests.kernels.emulated.emulation import build, compiler
from tests.kernels.emulated.judging import Verdict, judge
from tests.tools import required, required_sm90

ARCH = "sm_90"  # with the copies that only it has


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
    parser.add_argument("--family", choices=("sm80", "sm90", "decode"), default="sm90")
    parser.add_argument("--sample", choices=SAMPLES, default="paths")
    parser.add_argument("--repeats", type=int, default=20, help="of each workload")
    parser.add_argument("--seed", type=int, default=0, help="of the schedules")
    parser.add_argument("--first", type=int, default=0, help="kernel of the sample, from 0")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args(arguments)
    requests = SAMPLES[options.sample](options.family)[max(0, options.first) :]
    if options.repeats < 0 or options.jobs < 1 or not requests:
        parser.error("--repeats is at least 0, --jobs at least 1, --first within the sample")
    if compiler() is None:
        parser.error("there is no C++ compiler that knows C++20 and fp16; name one in CXX")
    found, launches = 0, 0
    began = time.monotonic()

    def one(request: BuildRequest) -> Verdict:
        try:
            kernel = build(request, Path(folder))
        except ValueError as error:
            return Verdict(0, (str(error)[:2000],))
        return judge(kernel, repeats=options.repeats, seed=options.seed)

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        for request, verdict in zip(requests, pool.map(one, requests), strict=True):
            launches += verdict.launches
            found += bool(verdict.findings)
            said = "; ".join(verdict.findings) or "right"
            print(f"{request.variant.key} @ {request.traits}: {verdict.launches} launches, {said}",
                  flush=True)  # fmt: skip
    seconds = time.monotonic() - began
    print(f"{len(requests)} kernels, {launches} launches, {found} not right, {seconds:.0f} s")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
