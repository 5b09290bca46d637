"""Variants to artifacts: in parallel, each once, a failure costing only its own variant."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from fa_tune import families
from fa_tune.build import nvrtc
from fa_tune.build.cache import ArtifactKey, ArtifactStore, Stored, source_sha256
from fa_tune.build.memo import remembered
from fa_tune.build.pool import compile_all
from fa_tune.build.ptxas_log import CompiledKernel
from fa_tune.build.worker import CompileJob
from fa_tune.core import arch
from fa_tune.core.model import Artifact, Outcome, Resources, Variant
from fa_tune.families import sources
from fa_tune.families.base import KernelFamily
from fa_tune.families.equal_sources import representative
from fa_tune.families.plan import LaunchPlan

DEFAULT_TIMEOUT_S = 120.0
# Registers, spills and shared memory are in the log only when ptxas is verbose.
OPTIONS = ("-std=c++20", "--use_fast_math")
_FACTS_OPTION = "--ptxas-options=-v"


@dataclass(frozen=True)
class BuildRequest:
    """A variant with a workload's compile-time traits, for one architecture (`sm_90`)."""

    variant: Variant
    traits: str
    arch: str


@dataclass(frozen=True)
class BuildResult:
    """How one build ended: OK with an artifact, or COMPILE_FAILED, TIMED_OUT or CRASHED with
    a one-line reason.  `cached`: nothing was compiled for it; `log` is all the compiler said
    about a failure."""

    request: BuildRequest
    outcome: Outcome
    artifact: Artifact | None
    reason: str
    cached: bool
    log: str = ""


def kernel_source_sha256(family: str, *others: str) -> str:
    """One hash over the code of a family's kernel sources, for provenance: comments, white
    space and names of files are not in it.  Of several families, in any order, one hash over
    theirs."""
    return _combined({n: _code_sha256(n) for n in (family, *others)})


def _code_sha256(family: str) -> str:
    return _sha256_of_code(tuple(families.get(family).source_files().items()))


@lru_cache(maxsize=16)  # every attempt asks for its family's
def _sha256_of_code(contents: tuple[tuple[str, str], ...]) -> str:
    files = dict(contents)
    rules = Path(sources.__file__).read_text(encoding="utf-8")
    subject = f"code of {source_sha256(files)} by {source_sha256({'rules': rules})}"
    return remembered(subject, lambda: sources.code_sha256(files))


def kernel_source_identity(family: str, *others: str) -> str:
    """As `kernel_source_sha256`, but the same for all sources that were proven to compile to
    the same machine code: what a finished attempt depends on."""
    return _combined({n: representative(n, kernel_source_sha256(n)) for n in (family, *others)})


def _combined(hashes: Mapping[str, str]) -> str:
    return next(iter(hashes.values())) if len(hashes) == 1 else source_sha256(hashes)


def build(
    requests: Sequence[BuildRequest],
    store: ArtifactStore,
    *,
    jobs: int | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    on_result: Callable[[BuildResult], None] | None = None,
    on_idle: Callable[[], None] | None = None,
) -> list[BuildResult]:
    """Compile what the store does not hold; one result per request, in the same order.

    `jobs` is the number of compiler processes, default one per core; `timeout_s` the deadline
    of each compilation.  `on_result` is called in this thread with each result as it arrives,
    stored ones first, and `on_idle` when only some are left that take much longer than the
    others did (see `compile_all`).  Whatever is finished when it or Ctrl-C interrupts is in the
    store.

    Raises ToolMissing (no NVRTC, or one that does not know an architecture), InvalidConfig (a
    request that cannot be understood) and StorageError (nothing can be written).
    """
    results: dict[int, BuildResult] = {}

    def finish(index: int, result: BuildResult) -> None:
        results[index] = result
        if on_result is not None:
            on_result(result)

    missing: dict[str, list[int]] = {}  # digest -> the requests it answers
    plans = _plans(requests)
    for index, plan in enumerate(plans):
        digest = plan.key.digest
        stored = None if digest in missing else store.get(plan.key)
        if stored is None:
            missing.setdefault(digest, []).append(index)
        else:
            finish(index, plan.result(stored, cached=True))
    for name in {plans[indices[0]].request.arch for indices in missing.values()}:
        nvrtc.require_arch(name)
    todo = {digest: plans[indices[0]].job(timeout_s) for digest, indices in missing.items()}
    with closing(compile_all(todo, workers=jobs or _cores(), on_idle=on_idle)) as replies:
        for digest, (made, cubin) in replies:
            stored = Stored(made, None)
            if made.outcome in (Outcome.OK, Outcome.COMPILE_FAILED):  # others may not come again
                stored = store.put(plans[missing[digest][0]].key, made, cubin)
            for index in missing[digest]:
                finish(index, plans[index].result(stored, cached=False))
    return [results[index] for index in range(len(requests))]


def build_ptx(variant: Variant, traits: str, arch: str) -> tuple[tuple[str, ...], bytes]:
    """The symbol of each launch, and PTX with a final zero, for a virtual architecture
    (`compute_80`).  Compiled in this process, and not kept: without ptxas that is quick.  Raises
    CompileError, ToolMissing."""
    family, config = families.get(variant.family), families.config_of(variant)
    names = family.name_expressions(config, traits)
    source, headers = family.entry_source(config, traits), family.source_files()
    options = (f"--gpu-architecture={arch}", *OPTIONS)
    ptx = nvrtc.compile_source(source, "kernel.cu", headers, options, tuple(dict.fromkeys(names)))
    return tuple(ptx.lowered[name] for name in names), ptx.image


def _cores() -> int:
    """The cores this process may use, which a container or a batch system may have cut."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class _Plan:
    """A request worked out: its place in the store and what a compiler needs."""

    request: BuildRequest
    family: KernelFamily
    names: Sequence[str]  # of the kernels of its launches
    launches: Sequence[LaunchPlan]
    key: ArtifactKey

    def job(self, timeout_s: float) -> CompileJob:
        return CompileJob(
            source=self.key.entry_source,
            headers=self.family.source_files(),
            options=self.key.options,
            name_expressions=tuple(self.key.name_expression.split("\n")),
            timeout_s=timeout_s,
        )

    def result(self, stored: Stored, *, cached: bool) -> BuildResult:
        entry = stored.entry
        if stored.cubin is None:
            return BuildResult(self.request, entry.outcome, None, entry.reason, cached, entry.log)
        names = self.key.name_expression.split("\n")
        compiled = dict(zip(names, entry.kernels, strict=True))
        launched = [compiled[name] for name in self.names]
        symbol, *more_symbols = (kernel.symbol for kernel in launched)
        artifact = Artifact(
            variant=self.request.variant,
            traits=self.request.traits,
            arch=self.request.arch,
            cubin=str(stored.cubin),
            symbol=symbol,
            resources=Resources.largest(
                [self._resources(*k) for k in zip(self.launches, launched, strict=True)]
            ),
            diagnostics=entry.diagnostics,
            compile_s=entry.compile_s,
            more_symbols=tuple(more_symbols),
        )
        return BuildResult(self.request, Outcome.OK, artifact, "", cached)

    def _resources(self, launch: LaunchPlan, compiled: CompiledKernel) -> Resources:
        facts = compiled.facts
        return Resources(
            registers=facts.registers,
            spill_store_bytes=facts.spill_store_bytes,
            spill_load_bytes=facts.spill_load_bytes,
            stack_bytes=facts.stack_bytes,
            static_smem_bytes=facts.static_smem_bytes,
            dynamic_smem_bytes=launch.dynamic_smem_bytes,
            threads=launch.threads,
            ctas_per_sm=arch.ctas_per_sm(
                arch.parse_arch(self.request.arch),
                threads=launch.threads,
                registers=facts.registers,
                smem_bytes=facts.static_smem_bytes + launch.dynamic_smem_bytes,
            ),
        )


def _plans(requests: Sequence[BuildRequest]) -> list[_Plan]:
    version = nvrtc.version() if requests else ""
    used = {request.variant.family for request in requests}
    # A family's sources are hashed once, not per variant.
    headers_sha256 = {name: source_sha256(families.get(name).source_files()) for name in used}
    return [_plan(request, version, headers_sha256[request.variant.family]) for request in requests]


def _plan(request: BuildRequest, version: str, headers_sha256: str) -> _Plan:
    family = families.get(request.variant.family)
    arch.parse_arch(request.arch)  # an unknown one is refused here, not by the compiler
    config = families.config_of(request.variant)
    names = family.name_expressions(config, request.traits)
    key = ArtifactKey(
        headers_sha256=headers_sha256,
        entry_source=family.entry_source(config, request.traits),
        options=(f"--gpu-architecture={request.arch}", _FACTS_OPTION, *OPTIONS),
        nvrtc=version,
        arch=request.arch,
        name_expression="\n".join(dict.fromkeys(names)),
    )
    launches = family.plan(config, request.traits, request.arch).launches
    return _Plan(request, family, names, launches, key)
