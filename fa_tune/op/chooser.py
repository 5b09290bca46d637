"""What runs a workload on a GPU: the registry's entry for it, else the nearest one that can, else
the default; compiled at its first use, by one process for all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

from filelock import FileLock

from fa_tune import families, libraries
from fa_tune.build.cache import ArtifactStore
from fa_tune.build.compile import BuildRequest, build, kernel_source_sha256
from fa_tune.core.arch import ArchLimits
from fa_tune.core.errors import InvalidConfig, NoUsableVariant
from fa_tune.core.model import Artifact, Variant, reference_subject
from fa_tune.core.workload import Workload
from fa_tune.families.base import Config
from fa_tune.libraries.base import Attend
from fa_tune.op.fallback_warning import tell
from fa_tune.store.registry import file as registry_file
from fa_tune.store.registry.lookup import EntryMatch, Target, in_order, serving
from fa_tune.store.registry.schema import Registry, Served


@dataclass(frozen=True)
class Choice:
    """What runs a workload, and why; `from_registry` is False for a default, `exact` True for the
    entry of the very workload.  `served`: the library that is called in the variant's place, for O
    alone of tensors that want no gradient."""

    variant: Variant
    artifact: Artifact
    why: str
    from_registry: bool
    exact: bool = False
    served: Served | None = None

    @property
    def subject(self) -> str:
        return self.variant.key if self.served is None else reference_subject(self.served.library)

    @property
    def attend(self) -> Callable[[Workload], Attend] | None:
        """What gives the library's function for a workload."""
        return None if self.served is None else libraries.get(self.served.library).attend

    def __str__(self) -> str:
        text = f"{self.variant.key}: {self.why}"
        if self.served is None:
            return text
        share = f"{self.served.ratio.value:.3f} of the time"
        return f"{self.subject} ({self.served.packages}), {share} of {text}"


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

    @cached_property
    def served(self) -> Mapping[Workload, Served]:
        """The libraries that are called for workloads, with the usual softmax scale.  Warns of
        those that are not here, or are others than those that were measured."""
        found: dict[Workload, Served | None] = {}
        for entry in in_order(self._registry.entries):
            if entry.gpu.name == self.gpu:
                found.setdefault(replace(entry.workload, softmax_scale=None), entry.served)
        named = {workload: one for workload, one in found.items() if one is not None}
        here = {one.library: _installed(one.library) for one in named.values()}
        gone = {one for one in named.values() if here[one.library] != one.packages}
        for packages in dict.fromkeys(one.packages for one in gone):
            reason = f"{packages} was faster, which is not installed here; search again"
            tell("attention", reason, how="is by our own kernels")
        return {workload: one for workload, one in named.items() if one not in gone}

    def choose(self, workload: Workload, like: Workload | None = None) -> Choice:
        """What runs a workload, compiled; `like` is the one to look up in its place.  Raises
        NoUsableVariant, StorageError, ToolMissing."""
        reasons = []
        for config, why, match in self._candidates(workload, like or workload):
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
            exact = match is not None and match.exact
            if like is not None and like != workload:
                exact = False
                why = f"{workload.key} counts as {like.key}: {why}"
            served = self.served.get(replace(workload, softmax_scale=None))
            return Choice(variant, built.artifact, why, match is not None, exact, served)
        text = "; ".join(dict.fromkeys(reasons))
        raise NoUsableVariant(f"no kernel runs {workload.key} on {self.gpu}: {text or 'none'}")

    def _candidates(
        self, workload: Workload, like: Workload
    ) -> Iterator[tuple[Config, str, EntryMatch | None]]:
        """Configs to try, in order, each with the reason why and what was looked up."""
        known: Mapping[str, str] = {name: _sources(name) for name in families.family_names()}
        here = Target(
            self.gpu,
            kernel_source_sha256=known,
            multiprocessors=self._limits.multiprocessors,
        )
        like = _with_lengths_of(workload, like)
        found = serving(self._registry, here, like)
        for match in found:
            try:
                config = families.config_of(match.chosen)
            except InvalidConfig:  # of another version, with other knobs
                continue
            if not families.of(config).suits(like):
                continue  # its kernels do not compute what is asked for
            yield config, "; ".join((match.explanation, *match.warnings)), match
        why = f"the default: the registry has nothing for {like.key} on {self.gpu}"
        for config in families.defaults_for(like, self._limits):
            yield config, why, None


def _with_lengths_of(workload: Workload, like: Workload) -> Workload:
    """`like`, but with the workload's lengths where rows are many, and still are with these: they
    decide which tile a default has; but not with a cache, where the first of a bucket chooses for
    all."""
    if workload.packed or workload.cached or workload.decode_shape:
        return like
    found = replace(like, seq_len_q=workload.seq_len_q, seq_len_kv=workload.seq_len_kv)
    return like if found.decode_shape else found


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


def _installed(library: str) -> str:
    """What a library comes from here; nothing for one that this fa-tune does not know."""
    return libraries.installed(library) if library in libraries.serving() else ""


@cache
def _sources(family: str) -> str:
    return kernel_source_sha256(family)
