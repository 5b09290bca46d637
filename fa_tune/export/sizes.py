"""Defaults for decoding by size: which config is the default for so many tiles, keys and rows.

For what nobody tuned a program takes the nearest of them, where Python asks the rule for the very
problem.  csrc/core/table.cpp has the same lookup.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache

from fa_tune import families
from fa_tune.core.arch import ArchLimits, smallest_served
from fa_tune.core.workload import Workload
from fa_tune.families.base import Config
from fa_tune.store.registry.between import distance
from fa_tune.store.registry.lookup import same_kind

ROWS = (16, 32, 64)  # of a tile
TILES = tuple(2**n for n in range(13))  # of all heads of K and V
KEYS = tuple(2**n for n in range(8, 18))
QUERIES = 2  # with a causal mask: it hides nothing from a single one


@dataclass(frozen=True)
class SizedDefault:
    """The default of workloads of few queries that are like this one, on GPUs of this compute
    capability (ten times the major version and the minor) and on later ones that run its code."""

    compute_capability: int
    workload: Workload
    config: Config

    @property
    def key(self) -> str:
        return families.variant(self.config).key

    def serves(self, workload: Workload) -> bool:
        """Whether it is for such a workload: of no more rows, which its tile may be made for, and
        whose sequences may differ in length if its own may."""
        own = self.workload
        return (
            workload.decode_shape
            and (workload.cached, _uneven(workload)) == (own.cached, _uneven(own))
            and _rows(workload) <= _rows(own)
            and same_kind(own, workload)
        )


def nearest(
    defaults: Iterable[SizedDefault], workload: Workload, compute_capability: int
) -> list[str]:
    """The keys of those that serve a workload on such a GPU, the nearest first: of the latest GPUs
    that are no later, of tiles that are no larger than it needs, by tiles and keys."""
    able = [d for d in defaults if d.compute_capability <= compute_capability]
    serving = [d for d in able if d.serves(workload)]
    serving.sort(key=lambda d: _rank(d, workload))
    return [d.key for d in serving]


def _rank(default: SizedDefault, workload: Workload) -> tuple[int, int, float]:
    own = default.workload
    return -default.compute_capability, _rows(own), distance(own, workload)


def _rows(workload: Workload) -> int:
    """As tiles have them."""
    return max(ROWS[0], workload.row_tiles[1])


@cache
def sized_defaults(like: Workload, arch: ArchLimits) -> tuple[SizedDefault, ...]:
    """Defaults of dtypes and head dimensions as in `like` that run on all GPUs which the code of an
    architecture runs on.  Each is one of thousands that are asked for."""
    found: list[SizedDefault] = []
    for rows, causal in itertools.product(ROWS, (False, True)):
        queries = QUERIES if causal else 1
        sizes = (1, rows // queries, 1, queries, KEYS[0], like.d_head, like.dtype)
        kind = Workload(
            *sizes,
            causal=causal,
            bottom_right=causal,
            d_head_v=like.d_head_v,
            kv_e4m3=like.kv_e4m3,
        )
        one_cache = replace(kind, cache_lengths="equal")
        several = replace(one_cache, batch=2)
        for one in (kind, one_cache, several):
            found += _of_plane(one, arch)
    return tuple(found)


def as_number(compute_capability: tuple[int, int]) -> int:
    """As CUDA's compilers have it: 90 of (9, 0)."""
    return 10 * compute_capability[0] + compute_capability[1]


def _uneven(workload: Workload) -> bool:
    return workload.cached and workload.batch > 1


def _of_plane(like: Workload, arch: ArchLimits) -> Iterator[SizedDefault]:
    """Defaults for so many tiles and keys, but for what all four neighbours say as well."""
    tiles, able = [n for n in TILES if n >= like.batch], smallest_served(arch)
    number = as_number(arch.compute_capability)
    plane: dict[tuple[int, int], SizedDefault] = {}
    for (i, n), (j, keys) in itertools.product(enumerate(tiles), enumerate(KEYS)):
        kv_heads = n // like.batch
        heads = kv_heads * like.heads
        workload = replace(like, heads=heads, kv_heads=kv_heads, seq_len_kv=keys)
        config = next(iter(families.defaults_for(workload, able)), None)
        if config is not None and families.is_for_decode_shapes(config):
            plane[i, j] = SizedDefault(number, workload, config)
    for (i, j), default in plane.items():
        around = (plane.get(at) for at in ((i - 1, j), (i + 1, j), (i, j - 1), (i, j + 1)))
        alike = all(other is None or other.config == default.config for other in around)
        if not alike or (i, j) == (0, 0):
            yield default
