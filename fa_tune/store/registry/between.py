"""What serves a problem beside tuned ones, where few queries see many keys.

Such a kernel takes the time of reading K and V, and how well its shares of them suit a GPU depends
on how many tiles and how many keys of each there are for its multiprocessors.  So problems are
points of a plane, by the logarithms of both.  Each of the nearest tuned ones tells how much time a
config takes over its choice.  Between them this is taken to change evenly, the nearer the more
weight, and the config that loses least serves.  The default of the problem itself is one of them:
it is as good there as the defaults of the tuned problems are where they are, and as in a search it
stays unless another one is expected to be clearly faster: the more so the further off the nearest
tuned problem is, since it alone is made for the sizes of the problem.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from fa_tune import families
from fa_tune.core.arch import ArchLimits, limits
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.model import Variant
from fa_tune.core.workload import Workload
from fa_tune.operations.forward.spec import keys_seen
from fa_tune.store.registry.schema import Entry, EntryKey

TILE_ROWS = 16  # rows that no tile is smaller than
ASKED = 4  # of the nearest problems
CLEAR = 0.01  # of the time, by which another config has to be faster than the default
# And more for each doubling to the nearest tuned problem.  By recordings of an H200 and an H100, of
# which one or two problems were given and any of the others asked for, this keeps configs away
# that took up to 20 times the default's time, and hardly one that was faster.
FURTHER = 0.03
# Of the time, beyond that of all that are known, that a config takes of which a tuned problem does
# not tell.  Entries tell of few: recordings with no more lose as little as those of all configs.
UNKNOWN = 0.1
WEIGHT = 4  # power of the distance: with 2, regimes that are far apart are mixed


@dataclass(frozen=True)
class Tuned:
    """A tuned problem: the choice, and the time of other configs over its own as far as known;
    `default` is that of its default, which need not be that of other problems."""

    workload: Workload
    chosen: Variant
    ratios: Mapping[Variant, float]
    default: float | None = None

    @classmethod
    def of(cls, entry: Entry) -> Tuned:
        """What an entry tells; what is tied with the choice takes its time."""
        ratios = dict.fromkeys(entry.tie_set, 1.0)
        ratios |= {r.variant: r.ratio.value for r in entry.runners_up}
        ratios[entry.chosen] = 1.0
        default = None if entry.default is None else ratios.get(entry.default)
        if default is None and entry.ratio_to_default is not None:
            default = 1.0 / entry.ratio_to_default.value
        return cls(entry.workload, entry.chosen, ratios, default)

    def loss(self, variant: Variant, asked: Workload, arch: ArchLimits | None = None) -> float:
        """The time of a config over the choice's, as far as it tells of a problem that is asked
        for; one that is not known is behind all that are."""
        known = families.carries_over(variant, self.workload, asked, arch)
        unknown = max(self.ratios.values()) * (1.0 + UNKNOWN)
        return self.ratios.get(variant, unknown) if known else unknown

    @property
    def loss_of_default(self) -> float:
        """The same of its own default."""
        return max(self.ratios.values()) if self.default is None else self.default


@dataclass(frozen=True)
class Between:
    """What serves: a config, its expected time over the best one's, and the tuned problems that
    were asked, the nearest first."""

    variant: Variant
    expected: float
    asked: tuple[Tuned, ...]


def distance(a: Workload, b: Workload) -> float:
    """How far apart two problems of few rows are, in doublings: of the tiles, of the keys of each
    that some query sees, and of the rows of one.  csrc/core/table.cpp has the same rule."""
    return sum(abs(x - y) for x, y in zip(_place(a), _place(b), strict=True))


def arch_of(
    compute_capability: tuple[int, int], gpu: str, multiprocessors: int | None = None
) -> ArchLimits | None:
    """The limits of such a GPU, `gpu` by its model; None where none are known here."""
    try:
        return limits(compute_capability, multiprocessors=multiprocessors, gpu=gpu)
    except InvalidConfig:
        return None


def default_of(workload: Workload, arch: ArchLimits | None) -> Variant | None:
    """What runs there without tuning, if anything is known to."""
    found = [] if arch is None else families.defaults_for(workload, arch)
    return families.variant(found[0]) if found else None


def between(
    tuned: Sequence[Tuned],
    asked: Workload,
    default: Variant | None = None,
    arch: ArchLimits | None = None,
) -> Between | None:
    """What serves a problem whose default is `default`, on a GPU of `arch`; None without tuned
    ones.  Those with other rows are asked only where there are no others."""
    if not tuned:
        return None
    alike = [t for t in tuned if _place(t.workload)[2] == _place(asked)[2]] or list(tuned)
    near = sorted(alike, key=lambda t: (distance(t.workload, asked), t.workload))[:ASKED]
    at = _place(asked)
    weights = [max(math.dist(_place(t.workload), at), 1e-3) ** -WEIGHT for t in near]

    def expected(variant: Variant) -> float:
        told = zip(weights, near, strict=True)
        return sum(weight * t.loss(variant, asked, arch) for weight, t in told) / sum(weights)

    known = _known(near, asked, arch)
    best = min(known, key=lambda variant: round(expected(variant), 3), default=None)
    if default is not None:
        told = zip(weights, near, strict=True)
        lost = sum(weight * t.loss_of_default for weight, t in told) / sum(weights)
        gain = CLEAR + FURTHER * distance(near[0].workload, asked)
        if best is None or round(lost, 3) <= round(expected(best) + gain, 3):
            return Between(default, lost, tuple(near))
    return None if best is None else Between(best, expected(best), tuple(near))


def _known(near: Sequence[Tuned], asked: Workload, arch: ArchLimits | None) -> list[Variant]:
    """What tuned problems tell of for this one.  Of two that lose as much there, the choice of the
    nearer problem is in front."""
    chosen = [(t.chosen, t) for t in near]
    others = sorted((v, n) for n, t in enumerate(near) for v in t.ratios)
    told = chosen + [(v, near[n]) for v, n in others]
    found = (v for v, t in told if families.carries_over(v, t.workload, asked, arch))
    return list(dict.fromkeys(found))


def by_room(workload: Workload) -> Workload:
    """The same for who knows no more of a cache than the number of keys that it has room for."""
    return replace(workload, cache_lengths="equal" if workload.cached else "", page_size=0)


def filled(entries: Sequence[Entry]) -> list[Entry]:
    """The entries for who looks up the nearest by sizes and no more: one more for each doubling of
    the keys between two of a kind, with what serves there, and those of caches by their room, where
    entries for sequences of different lengths come before others.  Of such an entry the workload
    and the choice hold."""
    found: dict[EntryKey, Entry] = {}
    for e in sorted(entries, key=lambda e: e.workload.cache_lengths == "equal"):
        made = replace(e, workload=by_room(e.workload)) if e.workload.cached else e
        found.setdefault(made.key, made)
    entries = list(found.values())
    lines: dict[tuple[object, ...], list[Entry]] = {}
    for e in entries:
        if e.workload.decode_shape:
            w = e.workload
            # Of so few keys a window would be none.
            window = w.window_left, w.window_right
            alike = replace(w, seq_len_kv=w.seq_len_q, bottom_right=False)
            lines.setdefault((e.gpu, e.method, alike, window), []).append(e)
    for members in lines.values():
        members.sort(key=lambda e: e.workload.seq_len_kv)
        tuned = [Tuned.of(e) for e in members]
        for e, later in pairwise(members):
            keys = 2 * e.workload.seq_len_kv
            while keys < later.workload.seq_len_kv:
                workload = replace(e.workload, seq_len_kv=keys)
                arch = arch_of(e.gpu.compute_capability, e.gpu.name)
                default = default_of(workload, arch)
                if (serves := between(tuned, workload, default, arch)) is not None:
                    made = replace(e, workload=workload, chosen=serves.variant, confirmation=None)
                    found.setdefault(made.key, made)
                keys *= 2
    return list(found.values())


def _place(workload: Workload) -> tuple[float, float, float]:
    """Tiles, keys that are read and rows of a tile, as logarithms."""
    keys = keys_seen(workload) / workload.batch
    number, rows = workload.row_tiles
    sizes = (number * workload.batch * workload.kv_heads, max(1, keys), max(TILE_ROWS, rows))
    return math.log2(sizes[0]), math.log2(sizes[1]), math.log2(sizes[2])
