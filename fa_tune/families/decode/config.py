"""The `decode` family's config: few queries after many keys, at the memory's speed.

`DecodeConfig` declares every knob once; the short form, the C++ struct, the constraints and the
launch geometry are all derived from it.  docs/kernel-decode.md describes the kernel.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from fa_tune.core.arch import ArchLimits
from fa_tune.core.model import Rejected
from fa_tune.core.workload import DType
from fa_tune.families.fields import (
    choice_field,
    coerce,
    cpp_literal,
    d_head_v_field,
    d_v_of,
    flag_field,
    number_field,
    tuple_field,
)

MAX_ROWS = 64  # that a workload may have for each head of K and V, to be worth a search
MMA_M = 16  # rows of one m16n8k16 tile
MMA_K = 16  # keys of its k-step
CHUNK_BYTES = 16  # of a copy
MAX_WARPS = 16
MOST_BLOCKS = 1024  # that a CTA may have at least
OPERANDS = 4096  # most elements of O, and of Q, in the registers of a warp


class Combine(IntEnum):
    """Who combines the parts of a tile."""

    LAST = 0
    KERNEL = 1

    @property
    def word(self) -> str:
        """In the short form."""
        return "" if self is Combine.LAST else "combine_kernel"


class KVType(IntEnum):
    """Element type of K and V."""

    SAME = 0
    E4M3 = 1

    @property
    def word(self) -> str:
        """In the short form."""
        return "" if self is KVType.SAME else "e4m3"


@dataclass(frozen=True, order=True)
class DecodeConfig:
    """One point of the family's knobs, totally ordered by its fields in this order."""

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
        "the parts of a tile are combined by the CTA that is done last, or by a kernel of its own",
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

    def __post_init__(self) -> None:
        coerce(self)
        if self.d_head_v == self.d_head:  # one kernel, one config
            object.__setattr__(self, "d_head_v", 0)

    def __str__(self) -> str:
        return self.short_form()

    def short_form(self) -> str:
        """`decode(BF16, 128, 16, 64, 4): stages_4+ctas_2`."""
        numbers: list[str] = []
        words: list[str] = []
        for f in dataclasses.fields(self):
            value, meta = getattr(self, f.name), f.metadata
            match meta["place"]:
                case "tuple":
                    numbers.append(value.name if isinstance(value, DType) else str(value))
                case "flag" if value:
                    words.append(meta["word"])
                case "number" if value != f.default:
                    words.append(f"{meta['word']}_{value}")
                case "choice" if value != f.default:
                    words.append(value.word)
        return f"decode({', '.join(numbers)}): {'+'.join(words)}".rstrip()

    def to_cpp_struct(self) -> str:
        """The config as a C++ literal of the generated struct."""
        values = (cpp_literal(getattr(self, f.name)) for f in dataclasses.fields(self))
        return f"DecodeConfig{{{', '.join(values)}}}"

    def kernel_name(self) -> str:
        """The kernel template's name."""
        return "decode_kernel" if self.cluster == 1 else "decode_cluster_kernel"

    @property
    def d_v(self) -> int:
        """Head dimension of V and O."""
        return d_v_of(self)

    @property
    def kv_bytes(self) -> int:
        """Of an element of K and V."""
        return self.dtype.size_bytes if self.kv_type is KVType.SAME else 1

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
        """Dynamic shared memory: kernels/decode/warp_group.cuh, Layout."""
        keys = self.B_c // self.groups
        ring = self.stages * keys * (self.d_head + self.d_v) * self.kv_bytes
        sums = self.B_r * 4 * self.d_v
        parts = (16 + 8) * self.B_r * self.d_v // 4 if self.cluster > 1 else 0
        return self.groups * (max(ring, sums) + 8 * self.B_r) + 16 + parts


def _copies_divide(config: DecodeConfig) -> bool:
    for columns in (config.d_head, config.d_v):
        chunks = columns * config.kv_bytes // CHUNK_BYTES
        if MMA_K * (chunks & -chunks) % (32 * config.row_warps):
            return False
    return True


Check = Callable[[DecodeConfig], bool]

# Name, sentence, test.  kernels/decode/constraints.cuh asserts the same with the same sentences.
CONSTRAINTS: tuple[tuple[str, str, Check], ...] = (
    (
        "d_head_whole_chunk_groups",
        "d_head must be a multiple of 32 between 32 and 256, whole groups of four 16-byte chunks",
        lambda c: 32 <= c.d_head <= 256 and c.d_head % 32 == 0,
    ),
    (
        "d_head_v_whole_chunk_groups",
        "d_head_v must be 0, as d_head, or a multiple of 32 between 32 and 256",
        lambda c: 32 <= c.d_v <= 256 and c.d_v % 32 == 0,
    ),
    (
        "e4m3_whole_chunk_groups",
        "e4m3 needs multiples of 64 as d_head and d_head_v: half of the chunks",
        lambda c: c.kv_type is KVType.SAME or (c.d_head % 64 == 0 and c.d_v % 64 == 0),
    ),
    (
        "n_warps_in_range",
        "n_warps must be between 1 and 16",
        lambda c: 1 <= c.n_warps <= MAX_WARPS,
    ),
    (
        "row_warps_divide_warps",
        "row_warps must divide n_warps: each group of so many warps has keys of its own",
        lambda c: c.row_warps >= 1 and c.n_warps % c.row_warps == 0,
    ),
    (
        "warps_own_whole_mma_tiles",
        "B_r must be a multiple of 16 * row_warps, so that every warp has whole 16-row mma tiles",
        lambda c: c.B_r >= MMA_M and c.B_r % (MMA_M * c.row_warps) == 0,
    ),
    (
        "rows_fit_registers",
        "Q and O of a warp's rows must fit its registers: rows times d_head at most 4096",
        lambda c: c.B_r // c.row_warps * max(c.d_head, c.d_v) <= OPERANDS,
    ),
    (
        "groups_have_whole_k_steps",
        "B_c must be a multiple of 16 keys for each group of warps",
        lambda c: c.B_c >= MMA_K and c.B_c % (MMA_K * c.groups) == 0,
    ),
    (
        "copies_divide_evenly",
        "the 16-byte chunks of 16 keys must divide evenly among the threads of row_warps",
        _copies_divide,
    ),
    (
        "stages_in_range",
        "stages must be between 2 and 8",
        lambda c: 2 <= c.stages <= 8,
    ),
    (
        "ctas_in_range",
        "ctas_per_sm must be between 1 and 8",
        lambda c: 1 <= c.ctas_per_sm <= 8,
    ),
    (
        "min_blocks_in_range",
        f"min_blocks must be between 1 and {MOST_BLOCKS}",
        lambda c: 1 <= c.min_blocks <= MOST_BLOCKS,
    ),
    (
        "cluster_in_range",
        "cluster must be 1, 2, 4 or 8",
        lambda c: c.cluster in (1, 2, 4, 8),
    ),
    (
        "cluster_shares_tiles",
        "with a cluster for each tile there are no aligned, min_blocks, combine, tile_keys and "
        "by_rows to choose",
        lambda c: (
            c.cluster == 1
            or (
                c.min_blocks == 1
                and not c.aligned
                and c.combine is Combine.LAST
                and c.tile_keys == 0
                and not c.by_rows
            )
        ),
    ),
    (
        "tile_keys_in_range",
        "tile_keys must be between 0 and 1024",
        lambda c: 0 <= c.tile_keys <= 1024,
    ),
)


def device_rejection(limits: ArchLimits) -> Rejected | None:
    """Why no config runs on a device with `limits`, or None."""
    if limits.compute_capability < (8, 0):
        return Rejected("compute_capability", f"needs sm_80 or later, the device is {limits.arch}")
    return None


def constraints(config: DecodeConfig, limits: ArchLimits) -> Rejected | None:
    """The first reason why `config` cannot run on a device with `limits`, or None."""
    if (why := device_rejection(limits)) is not None:
        return why
    for name, sentence, holds in CONSTRAINTS:
        if not holds(config):
            return Rejected(name, sentence)
    for word, wanted, least in (
        ("e4m3", config.kv_type is KVType.E4M3, (8, 9)),
        ("dependent", config.dependent, (9, 0)),
        ("cluster", config.cluster > 1, (9, 0)),
    ):
        if wanted and limits.compute_capability < least:
            return Rejected(
                "compute_capability",
                f"{word} needs sm_{least[0]}{least[1]} or later, the device is {limits.arch}",
            )
    if config.ctas_per_sm * config.threads > limits.max_threads_per_sm:
        return Rejected(
            "threads_fit",
            f"{config.ctas_per_sm} CTAs have {config.ctas_per_sm * config.threads} threads, "
            f"{limits.arch} allows {limits.max_threads_per_sm} on a multiprocessor",
        )
    allowed = limits.smem_per_sm_bytes // config.ctas_per_sm - limits.smem_reserved_bytes
    allowed = min(limits.smem_per_block_bytes, allowed // 128 * 128)
    if config.smem_bytes > allowed:
        return Rejected(
            "smem_fits",
            f"needs {config.smem_bytes / 1024:g} KiB of shared memory, {limits.arch} allows "
            f"{allowed / 1024:g} KiB per CTA with ctas_per_sm {config.ctas_per_sm}",
        )
    return None
