"""What runs a workload on a GPU: the registry's entry for it, else the nearest one that can, else
the default; compiled at its first use, by one process for all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

from filelock import FileLock

from fa_tune import families
from fa_tune.build.cache import ArtifactStore
from fa_tune.build.compile import BuildRequest, build, kernel_source_sha256
from fa_tune.core.arch import ArchLimits
from fa_tune.core.errors import InvalidConfig, NoUsableVariant
from fa_tune.core.model import Artifact, Variant
from fa_tune.core.workload import FEW_ROWS, Workload
from fa_tune.families.base import Config
from fa_tune.store.registry import file as registry_file
from fa_tune.store.registry.lookup import Target, serving
from fa_tune.store.registry.schema import Registry


@dataclass(frozen=True)
class Choice:
    """What runs a workload, and why; `from_registry` is False for a default."""

    variant: Variant
    artifact: Artifact
    why: str
    from_registry: bool

    def __str__(self) -> str:
        return f"{self.variant.key}: {self.why}"


class Chooser:
    """Chooses for one GPU model, called as the driver spells it.  `registry` and `cache_dir` None:
    the user's own.  `repeatable`: kernels that give the same bits always, in place of those that do
    not.

    The registry is read once, at the first choice, which raises RegistryError for one that cannot
    be read; make another object to see what a search has added since.
    """

    def __init__(
        self,
        gpu: str,
        limits: ArchLimits,
        registry: Path | str | None = None,
        *,
        cache_dir: Path | None = None,
        repeatable: bool = False,
    ) -> None:
        self.gpu = gpu
        self._repeatable = repeatable
        self._limits = limits
        self._path = registry
        self._store = ArtifactStore(cache_dir)

    @cached_property
    def _registry(self) -> Registry:
        return registry_file.load(self._path or registry_file.default_path())

    @cached_property
    def tuned(self) -> frozenset[Workload]:
        """The workloads that were tuned on this GPU model, with the usual softmax scale."""
        return frozenset(
            replace(entry.workload, softmax_scale=None)
            for entry in self._registry.entries
            if entry.gpu.name == self.gpu
        )

    def choose(self, workload: Workload, like: Workload | None = None) -> Choice:
        """What runs a workload, compiled; `like` is the one to look up in its place.  Raises
        NoUsableVariant, StorageError, ToolMissing."""
        reasons = []
        for config, why, from_registry in self._candidates(workload, like or workload):
            if self._repeatable:
                config = config.repeatable()
            family = families.of(config)
            if (rejected := family.constraints(config, self._limits)) is not None:
                reasons.append(rejected.reason)
                continue
            variant = families.variant_of(family, config)
            traits = family.traits(config, workload)
            request = BuildRequest(variant, traits, family.compile_arch(self._limits))
            with _alone(self._store.path.parent / "locks", request):
                (built,) = build([request], self._store, jobs=1)
            if built.artifact is None:
                reasons.append(built.reason)
                continue
            if like is not None and like != workload:
                why = f"{workload.key} counts as {like.key}: {why}"
            return Choice(variant, built.artifact, why, from_registry)
        text = "; ".join(dict.fromkeys(reasons))
        raise NoUsableVariant(f"no kernel runs {workload.key} on {self.gpu}: {text or 'none'}")

    def _candidates(self, workload: Workload, like: Workload) -> Iterator[tuple[Config, str, bool]]:
        """Configs to try, in order, each with the reason why and whether it was looked up."""
        known: Mapping[str, str] = {name: _sources(name) for name in families.family_names()}
        here = Target(
            self.gpu,
            kernel_source_sha256=known,
            multiprocessors=self._limits.multiprocessors,
        )
        found = serving(self._registry, here, like)
        for match in found:
            try:
                config = families.config_of(match.chosen)
            except InvalidConfig:  # of another version, with other knobs
                continue
            if not families.of(config).suits(like):
                continue  # its kernels do not compute what is asked for
            yield config, "; ".join((match.explanation, *match.warnings)), True
        why = f"the default: the registry has nothing for {like.key} on {self.gpu}"
        workload = _with_rows_of(workload, like)
        for config in families.defaults_for(workload, self._limits):
            yield config, why, False


def _with_rows_of(workload: Workload, like: Workload) -> Workload:
    """`like`, but with as many rows as the workload where they are many: of a bucket some fill
    whole tiles and others do not, which decides a default; but not with a cache, where the first
    of a bucket chooses for all."""
    if workload.packed or workload.cached or min(workload.seq_len_q, like.seq_len_q) <= FEW_ROWS:
        return like
    return replace(like, seq_len_q=workload.seq_len_q)


def representative(workload: Workload) -> Workload:
    """The workload that stands for all of its bucket: batch·heads and lengths are the nearest
    powers of two in doublings, the heads one group.  So growing lengths need a choice per
    doubling.  Of few rows the keys alone are counted so: which kernel is fast hangs on how many
    tiles there are for each multiprocessor, and a cluster for each tile that all run at a time may
    wait for one another with a few tiles more.  Many rows stay many, since few want other kernels,
    and one sequence with a cache stays one and several several, since the length of one is that of
    all its heads.  csrc/torch/choices.cpp has the same buckets, and no caches."""
    group = workload.heads // workload.kv_heads
    if workload.packed:
        return _representative_packed(workload, group)
    if workload.decode_shape:
        batch, q = workload.batch * workload.kv_heads, workload.seq_len_q
    else:
        work = 1 << _nearest_log2(workload.batch * workload.heads)
        least = min(workload.batch, 2) if workload.cached else 1
        batch, q = max(least, work // group), 1 << _nearest_log2(workload.seq_len_q)
    kv_heads = 1
    if workload.cached and workload.batch == 1:
        batch, kv_heads = kv_heads, batch
    found = replace(
        workload,
        batch=batch,
        heads=group * kv_heads,
        kv_heads=kv_heads,
        seq_len_q=q,
        seq_len_kv=1 << _nearest_log2(workload.seq_len_kv),
        softmax_scale=None,
    )
    return found if found.decode_shape == workload.decode_shape else replace(found, seq_len_q=2 * q)


def _representative_packed(workload: Workload, group: int) -> Workload:
    """The rows in all are of one group of heads, too."""
    q, kv = (
        max(1, (1 << _nearest_log2(total * workload.heads)) // group)
        for total in (workload.total_q, workload.total_kv)
    )
    return replace(
        workload,
        batch=1 << _nearest_log2(workload.batch),
        heads=group,
        kv_heads=1,
        seq_len_q=1 << _nearest_log2(workload.seq_len_q),
        seq_len_kv=1 << _nearest_log2(workload.seq_len_kv),
        total_q=q,
        total_kv=kv,
        lengths="",
        softmax_scale=None,
    )


def _nearest_log2(n: int) -> int:
    return (n * n).bit_length() // 2


@contextmanager
def _alone(folder: Path, request: BuildRequest) -> Iterator[None]:
    """As the one process that builds it; where nothing can be written, as one of several."""
    key = f"{request.variant.key} {request.traits} {request.arch}"
    lock = FileLock(folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.lock")
    with ExitStack() as held:
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            held.enter_context(lock)
        yield


@cache
def _sources(family: str) -> str:
    return kernel_source_sha256(family)
