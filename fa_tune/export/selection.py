"""What goes into an exported library: entries, the kernels that they need, and defaults.

A kernel is compiled for a mask, for whole blocks or any length (ragged), with or without the
log-sum-exp.  An entry serves every workload of its kind that it is nearest to.  So each config is
exported for the masks it was chosen for, each both for whole blocks and for any length; with the
log-sum-exp too where it is asked for or an entry has it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fa_tune import families
from fa_tune.build.compile import BuildRequest
from fa_tune.core.arch import ArchLimits, limits, parse_arch, smallest_served
from fa_tune.core.errors import InvalidConfig, NoUsableVariant
from fa_tune.core.model import Variant
from fa_tune.core.workload import BACKWARD, FORWARD, DType, Workload
from fa_tune.export.sizes import ROWS, SizedDefault, sized_defaults
from fa_tune.families.base import Config
from fa_tune.families.fields import is_kv_e4m3
from fa_tune.families.selection import choose_configs
from fa_tune.operations.traits import Traits
from fa_tune.store.registry.between import filled
from fa_tune.store.registry.lookup import Target, alike, in_order, matches
from fa_tune.store.registry.schema import Entry, EntryKey, Registry

DEFAULT_D_HEADS = (64, 128)  # without an entry and without a wish
PTX_ARCH, PTX_CAPABILITY = "compute_80", (8, 0)


@dataclass(frozen=True)
class ExportOptions:
    """What to export.  `archs` empty: those of the entries' GPUs.  `workloads` empty: every entry,
    else those that serve these.  `kernels` is a set's key or one config's short form, exported
    beside what was chosen.  `d_heads` empty: those of the entries.  `dtypes` and `d_heads`, with
    `d_head_v` for V (0: the same), are what defaults are exported for, beside the head dimensions
    of `workloads`, and the configs of a set.  `ptx`: the defaults as PTX as well.  `backward`: the
    defaults of the backward pass, too, and the log-sum-exp that it needs.  `few_queries`: defaults
    for few queries after many keys, too; `by_size`: these for any number of tiles and keys, too,
    which are many; `kv_e4m3`: both for K and V in e4m3 as well."""

    registry: Path
    archs: tuple[str, ...] = ()
    workloads: tuple[Workload, ...] = ()
    kernels: str | None = None
    d_heads: tuple[int, ...] = ()
    d_head_v: int = 0
    dtypes: tuple[DType, ...] = tuple(DType)
    lse: bool = False
    ptx: bool = False
    backward: bool = False
    few_queries: bool = False
    by_size: bool = False
    kv_e4m3: bool = False

    @property
    def wants_few_queries(self) -> bool:
        return self.few_queries or self.by_size or self.kv_e4m3

    @property
    def operations(self) -> tuple[str, ...]:
        return (FORWARD, BACKWARD) if self.backward else (FORWARD,)

    @property
    def narrow(self) -> tuple[bool, ...]:
        """Whether K and V are in e4m3, of defaults for few queries."""
        return (False, True) if self.kv_e4m3 else (False,)


@dataclass
class Selection:
    """What was selected: `kernels` to compile, `ptx` the (variant, traits) to compile to PTX,
    `defaults` in the order of preference, `sized` those that come before them where they serve,
    `left_out` one sentence for each thing that was."""

    entries: list[Entry] = field(default_factory=list)
    kernels: list[BuildRequest] = field(default_factory=list)
    ptx: list[tuple[Variant, str]] = field(default_factory=list)
    defaults: list[Variant] = field(default_factory=list)
    sized: list[SizedDefault] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def select(registry: Registry, options: ExportOptions) -> Selection:
    """Choose what to export.  Raises InvalidConfig for a set or an architecture that means nothing,
    NoUsableVariant where nothing is to be exported."""
    found = Selection()
    archs = [parse_arch(text) for text in options.archs] or _archs_of(registry.entries)
    if not archs:
        raise NoUsableVariant(
            f"there is nothing in the registry {options.registry}; fa-tune search fills it, "
            "and --arch names architectures to export the defaults for"
        )
    registry = Registry.of(filled(registry.entries))
    configs = {e.key: c for e in registry.entries if (c := _usable(e, archs, found)) is not None}
    legal = [e for e in registry.entries if e.key in configs]
    found.entries = in_order(_serving(legal, options.workloads, found))
    extra = list(_extra(options, archs, found))
    named = [families.kind_of(config) for config, _ in extra]
    ops = {e.workload.op for e in found.entries} | {op for *_, op in named}
    backward = options.backward or BACKWARD in ops
    lse = options.lse or backward or any(e.workload.lse for e in found.entries)
    options = replace(options, backward=backward, lse=lse)
    for entry in found.entries:
        if arch := _arch_for(entry.gpu.compute_capability, archs):
            _add(found, configs[entry.key], arch, options, like=(entry.workload,))
    for config, arch in extra:
        _add(found, config, arch, options)
    own = {(e.workload.d_head, e.workload.d_v) for e in found.entries}
    own |= {(d_head, d_v) for _, d_head, d_v, _ in named}
    asked = {(w.d_head, w.d_v) for w in options.workloads}  # of which not all may have entries
    if options.d_heads or not (own | asked):
        own = {(d, options.d_head_v or d) for d in options.d_heads or DEFAULT_D_HEADS}
    _add_defaults(found, options, archs, sorted(own | asked))
    found.kernels = list(dict.fromkeys(found.kernels))
    if not found.kernels and not found.ptx:
        raise NoUsableVariant("; ".join(["there is nothing to export", *found.left_out]))
    return found


def kernel_computes(config: Config, traits: str, workload: Workload) -> bool:
    """Whether a config compiled with these traits computes a workload: with its mask, its
    log-sum-exp and what changes its scores, and its lengths."""
    family, wanted = families.of(config), Traits.parse(traits)
    if not families.fits(config, workload):
        return False
    try:
        needed = Traits.parse(family.traits(config, workload))
    except InvalidConfig:
        return False
    same = replace(wanted, ragged=needed.ragged) == needed
    return same and (wanted.ragged or not needed.ragged)


def _archs_of(entries: Iterable[Entry]) -> list[ArchLimits]:
    """Architectures of the entries' GPUs, with its memory's speed where one has a single model."""
    found = []
    models: dict[tuple[int, int], set[str]] = {}
    for entry in entries:
        models.setdefault(entry.gpu.compute_capability, set()).add(entry.gpu.name)
    for capability, (model, *others) in sorted(models.items(), reverse=True):
        try:
            found.append(limits(capability, gpu="" if others else model))
        except InvalidConfig:  # the entry says so
            continue
    return found


def _arch_for(capability: tuple[int, int], archs: Sequence[ArchLimits]) -> ArchLimits | None:
    """The latest of `archs` whose code runs on a device."""
    able = [a for a in archs if a.compute_capability[0] == capability[0]]
    able = [a for a in able if a.compute_capability <= capability]
    return max(able, key=lambda a: a.compute_capability, default=None)


def _usable(entry: Entry, archs: Sequence[ArchLimits], found: Selection) -> Config | None:
    """The config of an entry; None, and a sentence, where it cannot be exported."""
    arch = _arch_for(entry.gpu.compute_capability, archs)
    try:
        if arch is None:
            major_minor = "{}{}".format(*entry.gpu.compute_capability)
            raise InvalidConfig(f"no architecture that is exported runs on sm_{major_minor}")
        if entry.workload.score_hook is not None:
            raise InvalidConfig("C++ launches no kernels with a score hook")
        config = families.config_of(entry.chosen)
        family = families.of(config)
        family.plan(config, str(Traits()), family.compile_arch(arch))
        if rejected := families.constraints(config, arch):
            raise InvalidConfig(rejected.reason)
    except InvalidConfig as error:
        about = f"{entry.workload.key} on {entry.gpu.name}: {entry.chosen.config}"
        found.left_out.append(f"{about}: {error}")
        return None
    return config


def _serving(
    entries: Sequence[Entry], workloads: Sequence[Workload], found: Selection
) -> Iterator[Entry]:
    """The entries that serve one of the workloads, each once; without workloads all."""
    usable = Registry.of(entries)
    if not workloads:
        yield from usable.entries
        return
    kept: dict[EntryKey, Entry] = {}
    gpus = sorted({e.gpu.name for e in usable.entries})
    for workload in workloads:
        nearest = [alike(matches(usable, Target(gpu), workload), workload)[:1] for gpu in gpus]
        kept |= {match.entry.key: match.entry for some in nearest for match in some}
        if not any(nearest):
            found.left_out.append(f"{workload.key}: no entry serves it; a default will")
    yield from kept.values()


def _extra(
    options: ExportOptions, archs: Sequence[ArchLimits], found: Selection
) -> Iterator[tuple[Config, ArchLimits]]:
    """The configs of `--kernels` that run on an architecture.  Raises InvalidConfig as `select`."""
    if options.kernels is None:
        return
    heads = [(d_head, options.d_head_v) for d_head in options.d_heads or DEFAULT_D_HEADS]
    for arch in archs:
        able = [family for op in options.operations for family in families.runnable(arch, op)]
        for config in choose_configs(options.kernels, options.dtypes, heads, able):
            if rejected := families.constraints(config, arch):
                about = families.variant(config).config
                found.left_out.append(f"{about} on {arch.arch}: {rejected.reason}")
            else:
                yield config, arch


PLAIN = (Traits(), Traits(causal=True))
LONG_CACHE = 131_072  # keys


def _add(
    found: Selection,
    config: Config,
    arch: ArchLimits,
    options: ExportOptions,
    like: Sequence[Workload] = (),
) -> Variant:
    """The kernels of a config for workloads like these; without any, for plain ones."""
    family = families.of(config)
    variant = families.variant_of(family, config)
    compiled_for = family.compile_arch(arch)
    kinds = [Traits.parse(family.traits(config, w)) for w in like]
    traits = _traits(
        kinds or PLAIN,
        _with_lse(family.operation, options, kinds),
        ragged=(False, True) if _has_whole(config) else (True,),
    )
    found.kernels += [BuildRequest(variant, t, compiled_for) for t in traits]
    return variant


def _with_lse(op: str, options: ExportOptions, kinds: Sequence[Traits] = ()) -> Sequence[bool]:
    """With and without the log-sum-exp; of a backward pass its gradient, by an entry alone."""
    wanted = options.lse if op == FORWARD else any(kind.lse for kind in kinds)
    return (False, True) if wanted else (False,)


def _has_whole(config: Config) -> bool:
    """Whether lengths that are whole blocks have a kernel of their own."""
    family = families.of(config)
    dtype, d_head, d_v, op = families.kind_of(config)
    sizes, narrow = (1, 1, 1, *families.blocks(config)), is_kv_e4m3(config)
    workload = Workload(*sizes, d_head, dtype, d_head_v=d_v, kv_e4m3=narrow, op=op)
    return not Traits.parse(family.traits(config, workload)).ragged


def _traits(
    kinds: Sequence[Traits], lse: Sequence[bool], ragged: Sequence[bool] = (False, True)
) -> Iterator[str]:
    for kind, with_lse, any_length in itertools.product(kinds, lse, ragged):
        yield str(replace(kind, ragged=any_length, lse=with_lse))


def _add_defaults(
    found: Selection,
    options: ExportOptions,
    archs: Sequence[ArchLimits],
    heads: Sequence[tuple[int, int]],
) -> None:
    """What runs untuned: of each architecture and operation the default of the preferred family.
    `heads`: head dimensions of Q and K, and of V."""
    kinds = [(*pair, dtype) for pair in heads for dtype in options.dtypes]
    tuned = [e.workload for e in found.entries if e.workload.decode_shape]
    decode_shape = {(w.d_head, w.d_v, w.dtype) for w in tuned if not w.kv_e4m3}
    for arch in sorted(archs, key=lambda a: a.compute_capability, reverse=True):
        served = smallest_served(arch)
        for d_head, d_v, dtype in kinds:
            # An entry for few queries serves what is near, the default all else.
            likes = [
                Workload(1, 1, 1, 1, 1, d_head, dtype, d_head_v=d_v, kv_e4m3=narrow)
                for narrow in options.narrow
            ]
            if options.by_size:
                for like in likes:
                    _add_sized(found, like, arch, options)
            if options.wants_few_queries or (d_head, d_v, dtype) in decode_shape:
                for like in likes:
                    few = _for_few_queries(like, served)
                    found.defaults += [_add(found, config, arch, options) for config in few]
            for op in options.operations:
                configs = families.defaults(d_head, dtype, served, op, d_head_v=d_v)[:1]
                found.defaults += [_add(found, config, arch, options) for config in configs]
                if not configs:
                    text = f"{d_head}" if d_v == d_head else f"{d_head}, d_head_v {d_v}"
                    about = f"{dtype.name} d_head {text}" + (f", {op}" if op != FORWARD else "")
                    found.left_out.append(f"{about}: no default on {arch.arch}")
    if options.ptx:
        for (d_head, d_v, dtype), op in itertools.product(kinds, options.operations):
            served = smallest_served(limits(PTX_CAPABILITY))
            able = families.defaults(d_head, dtype, served, op, d_head_v=d_v)
            lse = _with_lse(op, options)
            for config in able[:1]:
                variant = families.variant(config)
                found.ptx += [(variant, traits) for traits in _traits(PLAIN, lse)]
                found.defaults.append(variant)
    found.defaults = list(dict.fromkeys(found.defaults))


def _add_sized(found: Selection, like: Workload, arch: ArchLimits, options: ExportOptions) -> None:
    """The defaults for decoding by size, and their kernels, of such dtypes and head dimensions."""
    sized = sized_defaults(like, arch)
    found.sized += sized
    for config in dict.fromkeys(default.config for default in sized):
        _add(found, config, arch, options)


def _for_few_queries(like: Workload, arch: ArchLimits) -> list[Config]:
    """What runs few queries after many keys untuned, the largest tile first, of such dtypes and
    head dimensions: those of large caches of several sequences, which do not count on any
    length."""
    found: dict[Config, None] = {}
    for rows in sorted(ROWS, reverse=True):
        workload = replace(like, batch=2, heads=rows, seq_len_kv=LONG_CACHE, cache_lengths="equal")
        found |= dict.fromkeys(families.defaults_for(workload, arch)[:1])
    return list(found)
