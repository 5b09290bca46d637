"""Kernels of the sm90 family that are held up at random and read poison where they read too soon.

They are compiled from the family's own sources, with the wrappers of the instructions that its
roles meet at replaced: around each of them a warp sleeps a hashed number of nanoseconds, up to
a limit that a launch sets for each role, and before a bulk copy is issued its destination is
filled with NaN.  So neither the sources nor the ordinary kernels know of it.

`MUTATIONS` are changes of the sources that are wrong and yet nearly always go well.
"""

import os
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fa_tune import families
from fa_tune.build.compile import OPTIONS, BuildRequest
from fa_tune.build.pool import compile_all
from fa_tune.build.worker import CompileJob
from fa_tune.core.model import Outcome
from fa_tune.families.sm90.config import GROUP_ROWS

SLEEPS = "stress_sleep_ns"  # the kernels' array of limits
# Its places: the producer, the consumer warpgroups, and handing on tile numbers.
ROLES = ("producer", "consumer 0", "consumer 1", "consumer 2", "consumer 3", "scheduler")
LIMITS_NS = (0, 100, 1000, 4000)
ROW_BYTES = 128  # of a panel

# Where roles meet, by file of kernels/: every name is wrapped.
MEETING_POINTS: Mapping[str, tuple[str, ...]] = {
    "ptx/mbarrier.cuh": (
        "mbarrier_arrive",
        "mbarrier_arrive_expect_tx",
        "mbarrier_wait",
        "mbarrier_test_wait",
        "mbarrier_wait_unless",
    ),
    "ptx/bar.cuh": ("bar_sync", "bar_arrive"),
    "ptx/cp_async_bulk.cuh": (
        "cp_async_bulk_tensor_4d_load",
        "cp_async_bulk_tensor_4d_store",
        "cp_async_bulk_tensor_5d_load",
        "cp_async_bulk_tensor_5d_store",
        "cp_async_bulk_commit_group",
        "cp_async_bulk_wait_group_read",
    ),
    "ptx/shared_words.cuh": ("st_shared_v4", "ld_shared_v4", "st_shared", "ld_shared"),
    "ptx/cluster.cuh": ("cluster_wait",),
    "ptx/cluster_words.cuh": ("cluster_arrive", "ld_cluster_v4"),
}
# Functions of these files where nobody waits for anybody, or all do.
LEFT_ALONE: Mapping[str, tuple[str, ...]] = {
    "ptx/mbarrier.cuh": ("mbarrier_init", "fence_mbarrier_init"),
    "ptx/bar.cuh": (),
    "ptx/cp_async_bulk.cuh": ("prefetch_tensormap", "fence_proxy_async_shared"),
    "ptx/shared_words.cuh": (),
    "ptx/cluster.cuh": (
        *("cluster_rank", "cluster_arrive_relaxed", "address_in_cta"),
        *("st_async_v4", "st_async_v2"),
    ),
    "ptx/cluster_words.cuh": ("st_shared_v4",),
}
_SCHEDULERS = {"st_shared", "ld_shared", "st_shared_v4", "ld_shared_v4"}
_LOADS = {"cp_async_bulk_tensor_4d_load", "cp_async_bulk_tensor_5d_load"}
_FUNCTION = re.compile(
    r"^__device__ __forceinline__ (\w+) (\w+)\(((?:[^()]|\([^()]*\))*)\) \{", re.MULTILINE
)
_PARAMETER = re.compile(r"(\w+)\W*(?:\[\w+\])?$")

_SLEEP = f"""
#pragma once

extern "C" __constant__ unsigned {SLEEPS}[{len(ROLES)}] = {{}};

namespace stress {{

// One in four times, as the clock has it, up to the role's limit; the same for a whole warp.
__device__ __forceinline__ unsigned hashed() {{
    unsigned hash = static_cast<unsigned>(clock()) ^ blockIdx.x * 0x9e3779b9u;
    hash = (hash ^ threadIdx.x / 32 * 0x85ebca6bu) * 0xc2b2ae35u;
    return hash ^ hash >> 15;
}}

__device__ __forceinline__ void sleep(unsigned limit) {{
    if (limit == 0) return;  // the quick ones must be quick
    const unsigned hash = hashed();
    if ((hash & 3) == 0) __nanosleep(__umulhi(hash * 0x27d4eb2fu, limit));
}}

__device__ __forceinline__ void role() {{ sleep({SLEEPS}[threadIdx.x / 128]); }}

__device__ __forceinline__ void scheduler() {{ sleep({SLEEPS}[{len(ROLES) - 1}]); }}

// NaN in both types, 16 bytes of every row, where the copy is to go, before it goes.
__device__ __forceinline__ void poison(unsigned destination) {{
    const unsigned column = hashed() % {ROW_BYTES // 16} * 16;
#pragma unroll 4
    for (int row = 0; row < STRESS_POISON_ROWS; ++row) {{
        asm volatile("st.shared.v4.b32 [%0], {{%1, %1, %1, %1}};" ::"r"(destination +
                     {ROW_BYTES} * row + column), "r"(-1) : "memory");
    }}
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}}

}}  // namespace stress
"""


@dataclass(frozen=True)
class Mutation:
    """In one file the only match of each pattern is replaced."""

    file: str
    edits: tuple[tuple[str, str], ...]

    def applied(self, headers: Mapping[str, str]) -> dict[str, str]:
        """The sources with the change; raises ValueError if a pattern has not exactly one
        place."""
        text = headers[self.file]
        for pattern, replacement in self.edits:
            text, n = re.subn(pattern, replacement, text)
            if n != 1:
                raise ValueError(f"{n} places in {self.file} look like {pattern!r}, not 1")
        return {**headers, self.file: text}


MUTATIONS: Mapping[str, Mutation] = {
    "V is not waited for": Mutation(
        "sm90/fwd/consumer.cuh",
        (
            (
                r"(multiply_qk\(\);\s*)v\.wait\(\);(\s*multiply_pv\(accumulate\);\s*pass_turn)",
                r"\1stress::role();\2",
            ),
        ),
    ),
    "K is given back before it is read": Mutation(
        "sm90/fwd/consumer.cuh",
        (
            (
                r"(k\.wait\(\);)(\s*take_turn\(\);\s*multiply_qk\(\);\s*v\.wait)",
                r"\1 if (lane == 0) ptx::mbarrier_arrive(k.empty + 8 * k.position.stage); "
                r"stress::role();\2",
            ),
            (
                r"k\.release\(lane\);(\s*if \(kGivesQBack[^;]*;"
                r"\s*change_scores\(first_row, block, kMasked \|\| masked\);"
                r"\s*if constexpr \(kStaleMax && !kMasked && !kWatched\) \{"
                r"\s*if \(masked\) mask\(first_row, block\);\s*typename Rows::Early early;"
                r"\s*const bool refreshed = begin_stale_max_softmax)",
                r"k.arrived = 0; k.position.advance();\1",
            ),
        ),
    ),
}


def headers_of(mutation: Mutation | None = None) -> dict[str, str]:
    """The family's sources with the wrappers in place of the files that they wrap."""
    headers = dict(families.get("sm90").source_files())
    if mutation is not None:
        headers = mutation.applied(headers)
    for file in MEETING_POINTS.keys() & headers.keys():
        headers[f"plain/{file}"] = headers[file]
        headers[file] = _wrapped(file, headers[file])
    return headers | {"stress/sleep.cuh": _SLEEP}


@dataclass(frozen=True)
class Wrapper:
    """A function of kernels/ptx: what it returns, its parameters as written, their names."""

    returns: str
    parameters: str
    names: tuple[str, ...]


def functions(text: str) -> dict[str, Wrapper]:
    """What a file of wrappers declares, by name."""
    found = {}
    for returns, name, parameters in _FUNCTION.findall(text):
        each = [part.strip() for part in parameters.split(",") if part.strip()]
        names = tuple(match[1] for part in each if (match := _PARAMETER.search(part)))
        assert len(names) == len(each), f"{name}({parameters})"
        found[name] = Wrapper(returns, parameters, names)
    return found


def _wrapped(file: str, text: str) -> str:
    declared = functions(text)
    names = [name for name in MEETING_POINTS[file] if name in declared]
    renamed = "".join(f"#define {n} plain_{n}\n" for n in names)
    restored = "".join(f"#undef {n}\n" for n in names)
    wrappers = "\n".join(_wrapper(name, declared[name]) for name in names)
    return (
        f'#pragma once\n#include "stress/sleep.cuh"\n{_included_first(text)}{renamed}'
        f'#include "plain/{file}"\n{restored}namespace fa_tune::ptx {{\n{wrappers}\n}}\n'
    )


def _included_first(text: str) -> str:
    """What a file includes, so that it is there before names are changed."""
    return "".join(f"{line}\n" for line in text.splitlines() if line.startswith("#include"))


def _wrapper(name: str, plain: Wrapper) -> str:
    """A function that sleeps before and after."""
    sleep = "stress::scheduler();" if name in _SCHEDULERS else "stress::role();"
    poison = f"stress::poison({plain.names[0]}); " if name in _LOADS else ""
    call = f"plain_{name}({', '.join(plain.names)});"
    body = (
        f"{sleep} {poison}{call} {sleep}"
        if plain.returns == "void"
        else f"{sleep} const auto value = {call} {sleep} return value;"
    )
    return f"__device__ __forceinline__ {plain.returns} {name}({plain.parameters}) {{\n{body}\n}}"


@dataclass(frozen=True)
class Stressed:
    """A cubin with its kernel's name."""

    cubin: Path
    symbol: str
    diagnostics: tuple[str, ...] = ()


def compile_stressed(
    requests: Sequence[BuildRequest], folder: Path, mutation: Mutation | None = None
) -> list[Stressed]:
    """The kernels of these builds, held up and poisoned; raises ValueError if one does not
    compile."""
    family = families.get("sm90")
    headers = headers_of(mutation)
    jobs = {}
    for number, request in enumerate(requests):
        config = family.parse(request.variant.config)
        # Of the smallest box: of Q, or of K and V, which the CTAs of a cluster share.
        rows = min(config.B_c // getattr(config, "cluster", 1), GROUP_ROWS)
        jobs[str(number)] = CompileJob(
            family.entry_source(config, request.traits),
            headers,
            (
                f"--gpu-architecture={request.arch}",
                "--ptxas-options=-v",
                f"-DSTRESS_POISON_ROWS={rows}",
                *OPTIONS,
            ),
            (family.name_expression(config, request.traits),),
            120.0,
        )
    found: dict[str, Stressed] = {}
    for name, (made, cubin) in compile_all(jobs, workers=min(15, len(os.sched_getaffinity(0)))):
        if made.outcome is not Outcome.OK:
            raise ValueError(f"{requests[int(name)].variant.key}: {made.reason}")
        path = folder / f"{name}.cubin"
        path.write_bytes(cubin)
        found[name] = Stressed(path, made.kernels[0].symbol, made.diagnostics)
    return [found[name] for name in jobs]


def sleeps_ns(seed: int, count: int) -> list[tuple[int, ...]]:
    """The limits of so many launches: nobody is held up, then one role alone, then any of them,
    each at random."""
    dice = random.Random(seed)
    longest = LIMITS_NS[-1]
    found = [(0,) * len(ROLES)]
    found += [tuple(longest * (i == role) for i in range(len(ROLES))) for role in range(len(ROLES))]
    while len(found) < count:
        found.append(tuple(dice.choice(LIMITS_NS) for _ in ROLES))
    return found[:count]
