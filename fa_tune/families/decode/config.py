"""The `decode` family's config: few queries after many keys, at the memory's speed.

`DecodeConfig` declares every knob once; the short form, the C++ struct, the constraints and the
launch geometry are all derived from it.  docs/kernel-decode.md describes the kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

from fa_tune.core.workload import DType
from fa_tune.families.constraints import whole_chunk_groups
from fa_tune.families.fields import (
    CPP_D_V,
    Choice,
    ConfigBase,
    choice_field,
    d_head_v_field,
    flag_field,
    number_field,
    tuple_field,
)
from fa_tune.families.plan import TileOrder

MMA_M = 16  # rows of one m16n8k16 tile
MMA_K = 16  # keys of its k-step, in the product of P and V
MOST_BLOCKS = 1024  # that a CTA may have at least
MOST_TILE_KEYS = 1024


class Combine(IntEnum):
    """Who combines the parts of a tile."""

    LAST = 0
    KERNEL = 1
    ALL = 2

    @property
    def word(self) -> str:
        """In the short form."""
        return "" if self is Combine.LAST else f"combine_{self.name.lower()}"


class KVType(Choice):
    """Element type of K and V."""

    SAME = 0
    E4M3 = 1


@dataclass(frozen=True, order=True)
class DecodeConfig(ConfigBase):
    """One point of the family's knobs, totally ordered by its fields in this order."""

    CPP_METHODS = f"""
{CPP_D_V}
    // Columns of tiles, whole k-steps: copies add zeros behind d_head and d_v.
    FA_HOST_DEVICE constexpr int padded_d() const {{ return (d_head + 15) / 16 * 16; }}
    FA_HOST_DEVICE constexpr int padded_d_v() const {{ return (d_v() + 15) / 16 * 16; }}

"""
    HEAD = "decode({c.dtype.name}, {c.d_head}, {c.B_r}, {c.B_c}, {c.n_warps})"

    dtype: DType = tuple_field("element type of Q and O, and of K and V but with `e4m3`")
    d_head: int = tuple_field("head dimension")
    B_r: int = tuple_field("rows of a tile: queries of all heads that share one of K and V")
    B_c: int = tuple_field("key/value rows per block")
    n_warps: int = tuple_field("warps per CTA")
    stages: int = number_field("stages", 3, "blocks of K, and of V, that shared memory holds")
    row_warps: int = number_field(
        "row_warps", 1, "warps that divide the rows of a tile; the others have other keys"
    )
    ctas_per_sm: int = number_field(
        "ctas", 1, "CTAs of a multiprocessor; all of them together share the keys of all tiles"
    )
    min_blocks: int = number_field(
        "min_blocks", 1, "blocks of keys that a CTA takes at least; fewer CTAs if there are fewer"
    )
    aligned: bool = flag_field(
        "aligned",
        "tiles begin where CTAs do, or at equal parts of them, so that heads read the same keys at "
        "a time, where that leaves few CTAs without work; else all CTAs have equal shares",
        later=True,
    )
    combine: Combine = choice_field(
        Combine.LAST,
        "the parts of a tile are combined by the CTA that is done last, by a kernel of its own, or "
        "by all of its CTAs together",
    )

    d_head_v: int = d_head_v_field()
    kv_type: KVType = choice_field(
        KVType.SAME, "element type of K and V: that of Q, or e4m3 with scales; needs 8.9"
    )
    dependent: bool = flag_field(
        "dependent",
        "a launch begins before the one in front of it is done, and waits for it; needs 9.0",
        later=True,
    )
    cluster: int = number_field(
        "cluster",
        1,
        "CTAs of a cluster, which divide a tile's keys and combine their parts in shared memory; "
        "1: none; else needs 9.0",
    )
    tile_keys: int = number_field(
        "tile_keys",
        0,
        "keys that a tile counts for beside its own, and that its parts have at least, where the "
        "device alone knows lengths; without parts, if a tile has fewer",
    )

    by_rows: bool = flag_field(
        "by_rows",
        "at the end of a tile what the columns of a row have in common is found first, by a lane "
        "for each row, in place of by every thread for its columns",
        later=True,
    )
    shared_queries: bool = flag_field(
        "shared_queries",
        "the queries of a tile are loaded before any key, once for all warps, which take them from "
        "shared memory, in place of by each warp for itself behind its first keys",
        later=True,
    )

    sectors: bool = flag_field(
        "sectors",
        "copies of K and V take from memory the sectors of 32 bytes that they need, in place of "
        "whole lines of 128, which the next head shares",
        later=True,
    )
    order: TileOrder = choice_field(
        TileOrder.SHARES,
        "CTAs share the keys of all tiles; or have whole tiles by rounds, so that those that run "
        "at a time read heads that lie side by side; or there is a CTA for each tile",
    )

    def with_ring_kib(self, kib: int) -> DecodeConfig:
        """This tile with the ring that fills so many KiB; `former.toml` calls it."""
        return replace(self, stages=self.stages_in(kib << 10))

    def stages_in(self, ring_bytes: int) -> int:
        """Blocks in a ring of so many bytes: 2 to 8."""
        return max(2, min(8, ring_bytes // (self.B_c * self.key_bytes)))

    def kernel_name(self) -> str:
        """The kernel template's name."""
        return "decode_kernel" if self.cluster == 1 else "decode_cluster_kernel"

    @property
    def kv_bytes(self) -> int:
        """Bytes of an element of K and V."""
        return self.dtype.size_bytes if self.kv_type is KVType.SAME else 1

    @property
    def key_bytes(self) -> int:
        """Bytes of one key and its value."""
        return (self.d_head + self.d_v) * self.kv_bytes

    @property
    def has_whole_lines(self) -> bool:
        """Whether rows of K and V are lines of 128 bytes."""
        return all(d * self.kv_bytes % 128 == 0 for d in (self.d_head, self.d_v))

    @property
    def threads(self) -> int:
        """Threads per CTA."""
        return 32 * self.n_warps

    @property
    def groups(self) -> int:
        """Groups of warps, each with keys of its own."""
        return self.n_warps // self.row_warps

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory: kernels/decode/layout.cuh, Layout."""
        keys = self.B_c // self.groups
        row, row_v = whole_chunk_groups(self.d_head), whole_chunk_groups(self.d_v)
        ring = self.stages * keys * (row + row_v) * self.kv_bytes
        sums = self.B_r * 4 * row_v
        parts = (16 + 8) * self.B_r * self.d_v // 4 if self.cluster > 1 else 0
        queries = self.B_r * row * self.dtype.size_bytes if self.shared_queries else 0
        return self.groups * (max(ring, sums) + 8 * self.B_r) + queries + 16 + parts
