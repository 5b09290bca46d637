"""Bounds of the decode family's defaults: from where on one way to share keys is the faster one.

`tools/fit_decode.py` fits them to recordings and writes `bounds.toml`, a table for each compute
capability.  GPUs of another one have the first table's bounds, without what few GPUs can do."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

PATH = Path(__file__).with_name("bounds.toml")


@dataclass(frozen=True)
class Bounds:
    """Bounds of one compute capability; what is a time is that of reading K and V.  Only where they
    are `measured` there, defaults have clusters and queries that warps share."""

    # Clusters, a CTA for a multiprocessor ---------------------------------------------------

    # With more to read equal shares are as good: of 32 rows and of larger heads with half of it.
    most_ns: float
    # Of a CTA: to divide these among more of them gains nothing, but half of them do with few
    # tiles, and with fewer where the device alone knows how long these are.
    few_keys: float
    few_tiles: float
    few_uneven_tiles: float
    # What a CTA reads in a ns: bound by its ring, of which there is more or less, or by widening
    # e4m3.
    cta_bytes_per_ns: float
    deep_cta_bytes_per_ns: float
    e4m3_cta_bytes_per_ns: float
    # Blocks of a CTA: where there are more, a deeper ring, if few CTAs read.
    deep_blocks: float
    # For parts of 16 rows to go through memory, and more for each of them; for any number that the
    # CTAs of a tile of 16 rows combine together, and half of it for 32.
    parts_ns: float
    part_ns: float
    together_ns: float
    # That a launch gains which begins before the one in front of it is done.
    dependent_ns: float
    # Clusters of launches that overlap crowd some of the multiprocessors' groups, where tiles with
    # more bytes than these lose more than they gain, unless both launches have room or the first
    # has all.
    dependent_bytes: float
    # Of the room for clusters: so many are all.  Those of 2 leave no multiprocessor without work
    # then, and are faster with any number of keys.
    full: float
    # Of a CTA, where the device alone knows how long tiles are.
    most_uneven_bytes: float
    # Of a CTA: to read them twice, for two tiles of half of the rows, is faster than larger tiles.
    half_bytes: float

    # Small CTAs, by tiles for a multiprocessor ----------------------------------------------

    # Tiles for which there is no room in clusters of 2, a CTA for a multiprocessor, leave many of
    # these without work if a CTA has one: up to so many have a cluster of 2 each, two CTAs for a
    # multiprocessor.  The fewest of these read less than shares where there are many keys.
    paired: float
    paired_32: float  # of tiles of 32 rows
    few_paired: float
    # With so much to read clusters of 2, two CTAs for a multiprocessor.  All tiles run at a time,
    # or each multiprocessor has some and the last of them, which may not fill the GPU, take no
    # longer than a part of the whole.
    large_ns: float
    some_tiles: float
    most_tail: float
    # From so many to so many CTAs of one each are faster, three for a multiprocessor.
    whole: float
    two: float
    # Of more tiles than four CTAs for a multiprocessor, and not twice as many: where twice these
    # are more than so many times the tiles, a CTA for each is faster than equal shares, of tiles up
    # to so large, and of larger ones clusters of 2.
    idle: float
    idle_bytes: float
    # Of a tile.  Fewer were not measured; with more, whole tiles and few pairs are slower.
    small_cta_bytes: float
    most_small_cta_bytes: float

    # Equal shares ---------------------------------------------------------------------------

    # With `two` tiles for a multiprocessor it has two small CTAs, with so many four: one loads
    # while another is between two tiles.
    many: float
    # Where the device alone knows lengths, two from so many on if a tile has no more than these.
    few_small: float
    small_bytes: float
    # With more a launch gains nothing by beginning early.
    early_ns: float
    # Fewer tiles for a multiprocessor are in parts anyway; what is between tiles counts little.
    counted: float
    # Of K and V for each CTA: with no more, twice as many tiles of half the rows are faster, of 64
    # rows and of 32 whose CTAs combine together.
    small_tile_bytes: float
    few_key_bytes: float

    # Queries --------------------------------------------------------------------------------

    # Up to so much warps share them; up to half of it where fewer rows than `some` have queries,
    # but not where fewer than `few` have.
    queries_ns: float
    queries_32_ns: float  # with tiles of 32 rows
    some_queries: float
    few_queries: float

    measured: bool = True


@cache
def fitted() -> Mapping[tuple[int, int], Bounds]:
    """What `bounds.toml` holds, by compute capability."""
    tables = tomllib.loads(PATH.read_text(encoding="utf-8"))["fitted"]
    return {(*t["compute_capability"],): Bounds(**t["bounds"]) for t in tables}


def bounds_of(compute_capability: tuple[int, int]) -> Bounds:
    """Those of a compute capability; the first that were fitted where none were."""
    first = next(iter(fitted().values()))
    return fitted().get(compute_capability) or replace(first, measured=False)
