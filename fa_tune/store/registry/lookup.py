"""Which entry serves a GPU and a workload: the exact one, else the nearest workload's.

An entry holds for its GPU model only.  A lookup never compares times, so entries of different
methods can be looked at together; `METHODS` says which is taken where both would serve.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from fa_tune.core.model import Variant
from fa_tune.core.workload import FIELDS, READING_ORDER, Effect, Workload, unusual_labels
from fa_tune.families import carries_over
from fa_tune.families.equal_sources import equal, kind_of
from fa_tune.store.registry.between import Tuned, arch_of, between, default_of
from fa_tune.store.registry.between import distance as of_decode_shapes
from fa_tune.store.registry.schema import Entry, Registry

METHODS = ("ncu", "events")  # in order of preference; others follow by name
NEAR_ENOUGH = 1.001  # doublings: one, however it is rounded; csrc/core/table.cpp has it, too


@dataclass(frozen=True)
class Target:
    """Where a choice is to run.  `gpu` is the model as the driver spells it.  `method`, if given,
    must agree with an entry's; another `driver` or `kernel_source_sha256` (a hash per family; the
    chosen variant's counts) than the entry's only warns.  How many `multiprocessors` it has decides
    what serves between entries; None: as many as is usual for its compute capability."""

    gpu: str
    method: str | None = None
    driver: str | None = None
    kernel_source_sha256: Mapping[str, str] = field(default_factory=dict)
    multiprocessors: int | None = None


@dataclass(frozen=True)
class EntryMatch:
    """An entry that serves.  `exact`: it was measured on the very workload asked for, whatever
    the softmax scale.

    `distance` is in doublings (1.0 = twice the sequence, or half the heads); `explanation`
    says which workload's entry it is; `warnings` are reasons to measure again.

    `interpolated`: what serves beside several entries, of which `entry` is the nearest (see
    `between`).

    An inexact match's config need not be legal for the asked workload, and its `traits` are
    those of its own: ask the family for both.
    """

    entry: Entry
    exact: bool
    distance: float
    explanation: str
    warnings: tuple[str, ...] = ()
    interpolated: Variant | None = None

    @property
    def chosen(self) -> Variant:
        return self.entry.chosen if self.interpolated is None else self.interpolated


@dataclass(frozen=True)
class NoEntry:
    """No entry serves; `reason` says why and what to do, in one sentence."""

    reason: str


def find_match(registry: Registry, here: Target, workload: Workload) -> EntryMatch | NoEntry:
    """The best of `serving`, or the reason why there is none."""
    found = serving(registry, here, workload)
    if found:
        return found[0]
    return NoEntry(_why_none(registry, here, workload))


def serving(registry: Registry, here: Target, workload: Workload) -> tuple[EntryMatch, ...]:
    """`matches` but those that want other kernels, or tell nothing of such sizes; before them what
    serves between them, where few queries see many keys and none is of the very workload."""
    found = alike(matches(registry, here, workload), workload)
    if not found or found[0].exact:
        return found
    arch = arch_of(found[0].entry.gpu.compute_capability, here.gpu, here.multiprocessors)
    if not workload.decode_shape:
        return tuple(
            m for m in found if carries_over(m.entry.chosen, m.entry.workload, workload, arch)
        )
    tuned: dict[Workload, Tuned] = {}
    for match in found:  # a workload counts once, by the preferred method, whose entry is in front
        tuned.setdefault(match.entry.workload, Tuned.of(match.entry))
    serves = between([*tuned.values()], workload, default_of(workload, arch), arch)
    if serves is None:
        return found
    near = ", ".join(t.workload.key for t in serves.asked[:2])
    told = (
        f"no entry for {workload.key}; from {near} and others it is expected to lose "
        f"{100 * (serves.expected - 1):.1f} %"
    )
    return (replace(found[0], explanation=told, interpolated=serves.variant), *found)


def matches(registry: Registry, here: Target, workload: Workload) -> tuple[EntryMatch, ...]:
    """Every entry of the kind, nearest first: same GPU model, dtype, d_head, and causal or not.
    Last come those of few rows for a workload of many, or the reverse, which `serving` leaves out.

    How a causal mask is aligned and whether there is a log-sum-exp decides among entries that
    are equally near; the softmax scale never matters to time.

    A caller whose workload the nearest config cannot run takes the next.
    """
    usable = [
        e
        for e in registry.entries
        if e.gpu.name == here.gpu
        and same_kind(e.workload, workload)
        and here.method in (None, e.method)
    ]
    usable.sort(
        key=lambda e: (
            not _same_time(e.workload, workload),
            e.workload.decode_shape != workload.decode_shape,
            distance(e.workload, workload),
            seq_len_distance(e.workload, workload),  # tiles care more for it than for batch
            _differing_details(e.workload, workload),
            e.workload != workload,
            *_order(e),
        )
    )
    return tuple(
        EntryMatch(
            entry=e,
            exact=_same_time(e.workload, workload),
            distance=distance(e.workload, workload),
            explanation=_explain(e.workload, workload),
            warnings=_warnings(e, here),
        )
        for e in usable
    )


def alike(found: Iterable[EntryMatch], workload: Workload) -> tuple[EntryMatch, ...]:
    """Those of them that were tuned for few rows where the workload has few, for many where it has
    many; for caches of several sequences those that were tuned for caches, since what is fastest
    for sequences of one length may be slow where one is much longer."""
    uneven = workload.cached and workload.batch > 1
    return tuple(
        m
        for m in found
        if m.entry.workload.decode_shape == workload.decode_shape
        and (m.entry.workload.cached or not uneven)
    )


def near_enough(found: Iterable[EntryMatch], workload: Workload) -> tuple[EntryMatch, ...]:
    """Those that serve before a default for who takes the nearest, as an exported library does: of
    few rows only what was tuned for nearly such sizes."""
    few = workload.decode_shape
    return tuple(m for m in alike(found, workload) if not few or m.distance <= NEAR_ENOUGH)


def in_order(entries: Iterable[Entry]) -> list[Entry]:
    """Entries in the order in which `matches` takes those that serve equally well."""
    return sorted(entries, key=_order)


def _order(entry: Entry) -> tuple[Workload, tuple[int, str]]:
    return entry.workload, _method_rank(entry.method)


def distance(a: Workload, b: Workload) -> float:
    """How far apart two workloads of one kind are, in doublings: of the sequence (mean of
    query and key/value side), of batch·heads (of a packed batch, queries in all · heads), and of
    the heads that share a kv head.  Where few queries see many keys that of `between`."""
    if a.decode_shape and b.decode_shape:
        return of_decode_shapes(a, b)
    work = _doublings(_rows(a) * a.heads, _rows(b) * b.heads)
    group = _doublings(a.heads // a.kv_heads, b.heads // b.kv_heads)
    return seq_len_distance(a, b) + work + group


def _rows(workload: Workload) -> int:
    return workload.total_q if workload.packed else workload.batch


def seq_len_distance(a: Workload, b: Workload) -> float:
    """How far apart the lengths are, in doublings: the mean of queries and of keys."""
    both = _doublings(a.seq_len_q, b.seq_len_q) + _doublings(a.seq_len_kv, b.seq_len_kv)
    return both / 2.0


def _doublings(a: int, b: int) -> float:
    return abs(math.log2(a) - math.log2(b))


def _same_time(a: Workload, b: Workload) -> bool:
    """Whether the workloads are equal but for what costs nothing, such as the softmax scale."""
    paid = Effect.KIND, Effect.SIZE, Effect.DETAIL
    return a.values(*paid) == b.values(*paid)


def _differing_details(a: Workload, b: Workload) -> tuple[bool, ...]:
    """Whether they differ in each of the details, the weightier first."""
    return tuple(map(operator.ne, a.values(Effect.DETAIL), b.values(Effect.DETAIL)))


def same_kind(a: Workload, b: Workload) -> bool:
    """Whether results for one say anything about the other."""
    return a.values(Effect.KIND) == b.values(Effect.KIND)


def _method_rank(method: str) -> tuple[int, str]:
    return (METHODS.index(method) if method in METHODS else len(METHODS), method)


def _explain(found: Workload, asked: Workload) -> str:
    if _same_time(found, asked):
        return f"measured on {found.key}"
    names = (n for n in READING_ORDER if FIELDS[n].effect in (Effect.SIZE, Effect.DETAIL))
    told = (FIELDS[name].told_by or name for name in names)
    pairs = ((name, getattr(found, name), getattr(asked, name)) for name in told)
    differences = ", ".join(f"{name} {_told(a)} for {_told(b)}" for name, a, b in pairs if a != b)
    return f"no entry for {asked.key}; nearest is {found.key} ({differences})"


def _told(value: object) -> object:
    return "none" if value in (None, "") else value


def _warnings(entry: Entry, here: Target) -> tuple[str, ...]:
    out = []
    recorded = entry.provenance
    if here.driver is not None and recorded.driver != here.driver:
        was = f"driver {recorded.driver}" if recorded.driver else "an unrecorded driver"
        out.append(f"measured with {was}, this is {here.driver}; search again to be sure")
    family = entry.chosen.family
    present = here.kernel_source_sha256.get(family)
    known, kinds = recorded.kernel_source_sha256, [kind_of(entry.workload)]
    if present is not None and not equal(family, known, present, kinds):
        out.append("measured with other kernel sources; search again to be sure")
    return tuple(out)


def _why_none(registry: Registry, here: Target, workload: Workload) -> str:
    if not registry.entries:
        return "the registry is empty; run a search first"
    of_gpu = [e for e in registry.entries if e.gpu.name == here.gpu]
    if not of_gpu:
        gpus = {(e.gpu.name, *e.gpu.compute_capability) for e in registry.entries}
        held = sorted("{} ({}.{})".format(*gpu) for gpu in gpus)
        return (
            f"the registry has no entry for {here.gpu}, only for {', '.join(held)}: results of "
            "another GPU model do not carry over; run a search on this one"
        )
    by_method = [e for e in of_gpu if here.method in (None, e.method)]
    if not by_method:
        held = sorted({e.method for e in of_gpu})
        return (
            f"the registry has no results by {here.method} for {here.gpu}, only by "
            f"{', '.join(held)}"
        )
    if alike(matches(registry, here, workload), workload):
        return (
            f"what the registry has for {_kind_text(workload)} on {here.gpu} tells nothing of "
            f"{workload.key}, whose lengths suit other kernels; run a search for it"
        )
    held = sorted({_kind_text(e.workload) for e in by_method})
    return (
        f"the registry has nothing for {_kind_text(workload)} on {here.gpu}, only for "
        f"{'; '.join(held)}; run a search for it"
    )


def _kind_text(workload: Workload) -> str:
    mask = "causal" if workload.causal else "full"
    kind = [label for name, label in unusual_labels(workload) if FIELDS[name].effect is Effect.KIND]
    rows = ["with few queries"] if workload.decode_shape else []
    return " ".join((f"{workload.dtype.name} d_head {workload.d_head} {mask}", *kind, *rows))
