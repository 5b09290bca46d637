"""compute-sanitizer finds nothing in the kernels that together take every code path, every pair
of values of knobs, d_head and traits, new knobs included (tests/tools/required.py,
required_sm90.py and required_decode.py), nor in those of the `fast` sets of sm80 and sm90, nor in
a third of those of the backward passes.

What the tools see of the sm90 kernels is less than of the sm80 ones:

- racecheck looks at shared memory as threads load and store it.  A tensor's bulk copy is made by
  a unit of its own, and wgmma reads its operands itself: neither is a thread's access, so an
  early read of a stage, or one refilled too early, is no hazard to it.  What it does see are the
  accesses of threads: tiles handed on by the producer, Q read into registers, O staged on its way
  out.  It follows named barriers and mbarriers, the latter for the very lanes that arrive: where
  a warp reads and one lane arrives for all after __syncwarp, it reports a hazard.  Of a named
  barrier at which some wait and others only arrive it sees that those who wait come after those
  who arrive, not after each other.  All lanes read statistics of the backward passes, which bulk
  copies write: there it watches kernels in which all lanes arrive (arrivals.py).  Of wide heads it
  reports each read of P as a race with the next write, although readers arrive at the barrier that
  the writer waits for: these are left to the emulated kernels (P is overwritten while it is read).
  tests/gpu/test_stress.py is for the rest.
- synccheck follows barriers: named ones with a wrong number of threads, mbarriers used before
  they are initialised, and arrivals in a phase although nobody waited for the one before.  It
  takes waits for one named barrier at two instructions for divergent threads.
- memcheck sees loads and stores of threads (the log-sum-exp, counters, O where it is stored
  directly) and errors that the hardware reports.  Bulk copies cannot leave their tensor: a box
  beyond it is cut off.  That no tensor map is wrong, tests/gpu/test_grid.py tells by what lies
  beside the tensors.
- initcheck tells of global memory that a thread reads and nobody wrote, such as counters.  It does
  not see bulk copies, and of shared memory it does not tell.
"""

import itertools
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest

from fa_tune import families
from fa_tune.build.compile import BuildRequest
from fa_tune.core import codec
from fa_tune.core.arch import parse_arch
from fa_tune.core.model import Artifact, Outcome, Verdict
from fa_tune.core.workload import DType
from fa_tune.families.base import Config, KernelFamily
from fa_tune.families.decode.config import Combine, DecodeConfig
from fa_tune.families.sm90_bwd.config import Sm90BackwardConfig
from fa_tune.tune.verify import verdict_key
from fa_tune.workers.supervisor import ChildEnd, ItemResult, run_child
from tests.gpu.arrivals import with_all_lanes
from tests.gpu.cases import BACKWARD_FAMILIES, item_of, requests_of, small_workloads, takes
from tests.gpu.conftest import Built
from tests.gpu.faulty_kernels import compile_faulty, disguised
from tests.gpu.score_hooks import HOOKS
from tests.tools import required, required_decode, required_sm90

pytestmark = pytest.mark.gpu

N_WORKERS = max(8, (os.cpu_count() or 1) // 2)
FOUND_SOMETHING = 9
LAUNCH_COST = 1e7
# A read beyond one tensor must not end in the next one: each is an allocation of its own,
# followed by more room than a tile of rows takes.
MEMCHECK_OPTIONS = {
    "--padding": str(1 << 18),
    "--report-api-errors": "no",  # torch asks for things that a driver need not have
}
SUMMARIES = {
    "memcheck": "ERROR SUMMARY: 0 errors",
    "racecheck": "RACECHECK SUMMARY: 0 hazards",
    "synccheck": "ERROR SUMMARY: 0 errors",
    "initcheck": "ERROR SUMMARY: 0 errors",
}
_, PLACES, CAP_BY_FOUR, _ = HOOKS
MASKED = (
    "causal+ragged+lse+window+sink",
    "causal+ragged+lse+window+sink+softcap",
    f"ragged+lse+sink+hook_{CAP_BY_FOUR}",
    "causal+ragged+lse+packed",
    "ragged+lse+window+softcap+alibi+packed",
    f"causal+ragged+lse+window+packed+hook_{PLACES}",
)
CHANGED = (
    *("ragged", "causal+ragged", "causal+ragged+window+sink", "causal+ragged+packed"),
    *("ragged+lse", "causal+ragged+lse+softcap+alibi"),
)
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
    log = folder / "sanitizer.log"
    wrapper += ["--log-file", str(log)]
    for option, value in MEMCHECK_OPTIONS.items() if tool == "memcheck" else ():
        if option in help_text:
            wrapper += [option, value]
    items = {verdict_key(a): item_of(a) for a in artifacts}
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
    assert log.exists(), end.reason
    return end, log.read_text(errors="replace")


def assert_clean(end: ChildEnd, log: str, n_items: int, summary: str) -> None:
    """Every item got through, and the tool counted nothing."""
    assert summary in log, log[-3000:]
    failed = {k: r.reason for k, r in end.results.items() if r.outcome is not Outcome.OK}
    assert not failed
    assert end.finished, end.reason
    assert end.exit_code == 0
    assert len(end.results) == n_items


def shares(artifacts: Sequence[Artifact], n: int) -> list[list[Artifact]]:
    """The artifacts in `n` parts that take about as long: the one that takes longest first, each
    to the part that has least."""
    parts: list[list[Artifact]] = [[] for _ in range(n)]
    loads = [0.0] * n
    for artifact in sorted(artifacts, key=cost, reverse=True):
        least = loads.index(min(loads))
        parts[least].append(artifact)
        loads[least] += cost(artifact)
    return [part for part in parts if part]


def cost(artifact: Artifact) -> float:
    """How much a tool has to watch, in products of two numbers; each launch costs by itself."""
    return sum(
        w.batch * w.heads * w.seq_len_q * w.seq_len_kv * w.d_head + LAUNCH_COST
        for w in small_workloads(artifact.variant, artifact.traits)
    )


def run_parts(
    tool: str, handler: str, artifacts: Sequence[Artifact], folder: Path
) -> dict[str, ItemResult]:
    """The artifacts shared out among workers of launch_child that run at the same time: most of
    what a tool adds is work of the processor.  All must be clean; what they found by item."""

    def check(number: int, part: Sequence[Artifact]) -> dict[str, ItemResult]:
        end, log = run(tool, f"tests.gpu.launch_child:{handler}", part, folder / str(number))
        assert_clean(end, log, len(part), SUMMARIES[tool])
        return dict(end.results)

    found: dict[str, ItemResult] = {}
    parts = shares(artifacts, N_WORKERS)
    with ThreadPoolExecutor(N_WORKERS) as workers:
        for results in workers.map(check, itertools.count(), parts):
            found |= results
    assert len(found) == len(artifacts)
    return found


def sample(family: KernelFamily, arch: str) -> list[BuildRequest]:
    """Every pair of choices of a family, and what searches choose from, with all traits."""
    limits = parse_arch(arch)
    d_heads: Sequence[int] = required.ALL_D_HEADS
    match family.name:
        case "sm90":
            pairs = required_sm90.code_path_builds()
        case "decode":
            pairs = required_decode.code_path_builds(arch)
            d_heads = ()  # of those there are hundreds
        case _:
            pairs = required.code_path_builds(arch, required.ALL_D_HEADS)
    fast = [config for d_head in d_heads for config in family.configs("fast", d_head=d_head)]
    return list(dict.fromkeys([*pairs, *requests_of(fast, ["causal+ragged+lse"], limits)]))


@pytest.mark.parametrize("tool", SUMMARIES)
def test_every_code_path(
    family: KernelFamily, built: Built, arch: str, tmp_path: Path, tool: str
) -> None:
    """Under memcheck the results are looked at as well, by the product's own check."""
    artifacts = built(sample(family, arch))
    if tool != "memcheck":
        run_parts(tool, "handle", artifacts, tmp_path)
        return
    found = run_parts(tool, "judge", artifacts, tmp_path)
    verdicts = {key: codec.load(Verdict, r.value) for key, r in found.items() if r.value}
    assert {key: v.reason for key, v in verdicts.items() if not v.correct} == {}
    assert len(verdicts) == len(artifacts)


def masked(family: KernelFamily, arch: str) -> list[BuildRequest]:
    """A few kernels with what changes scores, their sum or where sequences begin, as far as the
    family computes it."""
    limits = parse_arch(arch)
    configs = [
        family.default_config(d, dtype) for d, dtype in ((64, DType.BF16), (128, DType.FP16))
    ]
    if limits.compute_capability == (9, 0):  # another scheduler, or turns
        configs += family.configs("fast", dtypes=[DType.FP16], d_head=64)[-1:]
    return [
        request
        for config in dict.fromkeys(configs)
        for request in requests_of([config], MASKED, limits)
        if all(takes(family, config, w) for w in small_workloads(request.variant, request.traits))
    ]


@pytest.mark.parametrize("tool", SUMMARIES)
def test_masks_hooks_and_packed_batches(
    family: KernelFamily, built: Built, arch: str, tmp_path: Path, tool: str
) -> None:
    run_parts(tool, "handle", built(masked(family, arch)), tmp_path)


def gradients(family: KernelFamily, arch: str) -> Iterator[BuildRequest]:
    """Every third kernel of the `fast` sets, one pass and two, with each of the traits in turn."""
    limits = parse_arch(arch)
    configs = [
        config
        for d_head, dtype in zip(required.ALL_D_HEADS, itertools.cycle(DType), strict=False)
        for config in family.configs("fast", dtypes=[dtype], d_head=d_head)[::3]
        if families.constraints(config, limits) is None
    ]
    for place, config in enumerate(configs):
        able = [
            request
            for request in requests_of([config], CHANGED, limits)
            if all(
                takes(family, config, w) for w in small_workloads(request.variant, request.traits)
            )
        ]
        yield able[place % len(able)]


def is_wide(config: Config) -> bool:
    """Whether a kernel hands P from warpgroup to warpgroup."""
    return isinstance(config, Sm90BackwardConfig) and config.is_wide


@pytest.mark.parametrize("tool", SUMMARIES)
def test_backward_passes(built: Built, arch: str, tmp_path: Path, tool: str) -> None:
    """Of all families at once: a tool takes longer to start than to watch these."""
    known = map(families.get, BACKWARD_FAMILIES)
    requests = [request for family in known for request in gradients(family, arch)]
    assert requests
    artifacts = built(requests)
    if tool == "racecheck":
        watched = [a for a in artifacts if not is_wide(families.config_of(a.variant))]
        artifacts = list(with_all_lanes(watched, tmp_path))
    run_parts(tool, "handle", artifacts, tmp_path)


@pytest.mark.parametrize("tool", SUMMARIES)
def test_parts_that_many_combine(built: Built, arch: str, tmp_path: Path, tool: str) -> None:
    """Of small workloads a tile has too few for that."""
    family, limits = families.get("decode"), parse_arch(arch)
    configs = [
        c
        for d_head in (64, 128, 256)
        for c in family.configs("fast", dtypes=[DType.BF16], d_head=d_head)
        if isinstance(c, DecodeConfig) and c.combine is Combine.ALL
    ]
    artifacts = built(requests_of(configs, ["causal+ragged+lse"], limits))
    run_parts(tool, "handle_few_heads", artifacts, tmp_path)


def test_memcheck_would_find_something(built: Built, arch: str, tmp_path: Path) -> None:
    """Otherwise its silence above would mean nothing."""
    good, bad = built(required.code_path_builds(arch))[:2]
    cubin = compile_faulty(tmp_path, arch, 128)
    bad = disguised(bad, cubin, "illegal_address")
    handler = "tests.gpu.launch_child:handle"
    end, log = run("memcheck", handler, [good, bad], tmp_path / "run")
    assert end.results[verdict_key(good)].outcome is Outcome.OK
    assert end.results[verdict_key(bad)].outcome is Outcome.CRASHED
    assert end.exit_code != 0
    assert "Invalid __global__ write" in log
    found = re.search(r"ERROR SUMMARY: (\d+) errors?", log)
    assert int(found[1]) > 0
