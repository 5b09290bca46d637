"""The `sm80` family's config: mma.sync kernels for compute capability 8.0 and later.

`FlashForwardKernelConfig` declares every knob once; the short form, the C++ struct, the
constraints and, in `sm80_family`, the launch geometry are all derived from it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from fa_tune.core.arch import ArchLimits
from fa_tune.core.model import Rejected
from fa_tune.core.workload import DType, Workload
from fa_tune.families.fields import (
    choice_field,
    coerce,
    cpp_literal,
    d_head_v_field,
    flag_field,
    number_field,
    tiles_field,
    tuple_field,
)
from fa_tune.ops import flops

MMA_M = 16  # rows of one m16n8k16 tile
MMA_K = 16  # its k-step, and what one "k-tile" means in the config
CHUNK_ELEMENTS = 8  # elements of one 16-byte copy
PANEL_COLUMNS = 64  # columns of one bulk tensor copy with 128-byte swizzle
BARRIER_BYTES = 1024  # room for the tags of blocks and the mbarriers, behind the tiles
BOX_ROWS = 256  # most rows of one bulk tensor copy
PING_PONG_CAPABILITY = (9, 0)


class ProductOrder(IntEnum):
    """Orders of a ping-pong slot's loads and products: kernels/sm80/fwd/product_order.cuh."""

    MEASURED = 0
    FEW_AHEAD = 1
    FAR_AHEAD = 2
    SHORT_RUNS = 3
    SHARED_MAXIMA = 4

    @property
    def word(self) -> str:
        """In the short form."""
        return "" if self is ProductOrder.MEASURED else self.name.lower()


@dataclass(frozen=True, order=True)
class FlashForwardKernelConfig:
    """One point of the family's knobs, totally ordered by its fields in this order."""

    dtype: DType = tuple_field("element type of Q, K, V and O")
    d_head: int = tuple_field("head dimension")
    B_r: int = tuple_field("query rows per CTA")
    B_c: int = tuple_field("key/value rows per block")
    n_warps: int = tuple_field("warps per CTA")
    async_copy: bool = flag_field("async", "global to shared by cp.async, not through registers")
    eager_load_blocks: bool = flag_field("eager", "issue the next K and V block early")
    swizzled: bool = flag_field("swizzled", "XOR-swizzled shared memory")
    Q_mma_load_K_tiles: int = tiles_field(
        "k-tiles of Q held in registers at once; 0 keeps all of Q there for the whole kernel"
    )
    K_mma_load_K_tiles: int = tiles_field("k-tiles of K loaded at once; 0 loads the whole block")
    V_mma_load_K_tiles: int = tiles_field("k-tiles of V loaded at once; 0 loads the whole block")
    mma_double_buffer_loads: bool = flag_field(
        "buffer", "load the next k-tiles while the current ones are multiplied"
    )
    optimized_softmax: bool = flag_field(
        "opt_softmax", "no rescale at the first block; scale folded into the exponent's FMA"
    )
    kv_stages: int = number_field("stages", 1, "K and V blocks in shared memory at once")
    rescale_threshold: int = number_field(
        "rescale",
        0,
        "O is rescaled only when a maximum grew by more than this power of two; 0 rescales at "
        "every block",
    )
    interleaved_softmax: bool = flag_field(
        "interleave", "the next keys' exponentials between the products P V", later=True
    )
    ping_pong: bool = flag_field(
        "pingpong",
        "bulk tensor copies, and the warps of a scheduler multiply in turn; needs 9.0",
        later=True,
    )
    product_order: ProductOrder = choice_field(
        ProductOrder.MEASURED,
        "with ping_pong, in which order a turn's loads and products stand; MEASURED is the one of "
        "the others that was fastest on an H200 for the mask and for d_head and B_c",
    )
    d_head_v: int = d_head_v_field()

    def __post_init__(self) -> None:
        coerce(self)
        if self.d_head_v == self.d_head:  # one kernel, one config
            object.__setattr__(self, "d_head_v", 0)

    def __str__(self) -> str:
        return self.short_form()

    def short_form(self, include_d_head: bool = True, include_tup: bool = True) -> str:
        """`(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax`.

        `include_d_head` and `include_tup` leave out the head dimension or the whole tuple.
        """
        words: list[str] = []
        numbers: list[str] = []
        tiles: list[str] = []
        for f in dataclasses.fields(self):
            value, meta = getattr(self, f.name), f.metadata
            match meta["place"]:
                case "tuple" if f.name != "d_head" or include_d_head:
                    numbers.append(value.name if isinstance(value, DType) else str(value))
                case "flag" if value:
                    words.append(meta["word"])
                case "tiles":
                    tiles.append(str(value))
                    if len(tiles) == 3:
                        words.append(f"load_{'_'.join(tiles)}_tiles")
                case "number" if value != f.default:
                    words.append(f"{meta['word']}_{value}")
                case "choice" if value != f.default:
                    words.append(value.word)
        features = "+".join(words)
        return f"({', '.join(numbers)}): {features}" if include_tup else features

    def to_cpp_struct(self) -> str:
        """The config as a C++ literal of the generated struct."""
        values = (cpp_literal(getattr(self, f.name)) for f in dataclasses.fields(self))
        return f"FlashForwardKernelConfig{{{', '.join(values)}}}"

    def kernel_name(self) -> str:
        """The kernel template's name."""
        return "flash_forward_ping_pong_kernel" if self.ping_pong else "flash_forward_kernel"

    @property
    def d_v(self) -> int:
        """Head dimension of V and O."""
        return self.d_head_v or self.d_head

    @property
    def threads(self) -> int:
        """Threads per CTA."""
        return 32 * self.n_warps

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory: Q (later O), and kv_stages blocks of K and of V.  With
        ping_pong O has rows of its own, rows are whole panels of 64 columns, and tags and
        barriers follow."""
        kv_rows = self.kv_stages * self.B_c
        if not self.ping_pong:
            elements = self.B_r * max(self.d_head, self.d_v) + kv_rows * (self.d_head + self.d_v)
            return elements * self.dtype.size_bytes
        panels = -(-self.d_head // PANEL_COLUMNS) - (-self.d_v // PANEL_COLUMNS)
        elements = (self.B_r + kv_rows) * panels * PANEL_COLUMNS
        return elements * self.dtype.size_bytes + BARRIER_BYTES

    def total_flop(self, n_samples: int, n_heads: int, seq_len: int) -> int:
        """Operations of the tiled algorithm; raises InvalidConfig if blocks do not divide."""
        return flops.total_flop(self._workload(n_samples, n_heads, seq_len), self.B_r, self.B_c)

    def attn_flop(self, n_samples: int, n_heads: int, seq_len: int) -> int:
        """batch·heads·(4·s²·d + 6·s²)."""
        return flops.attn_flop(self._workload(n_samples, n_heads, seq_len))

    def _workload(self, n_samples: int, n_heads: int, seq_len: int) -> Workload:
        shape = (n_samples, n_heads, n_heads, seq_len, seq_len, self.d_head, self.dtype)
        return Workload(*shape, d_head_v=self.d_head_v)


def sized_as(d_head: int, d_head_v: int) -> int:
    """The head dimension whose blocks suit a pair of them: the larger one; but O of up to 128
    columns leaves the registers that it does with 128, and K of up to 192 the shared memory."""
    d_v = d_head_v or d_head
    return 128 if d_v <= 128 < d_head <= 192 else max(d_head, d_v)


def _divides(tiles: int, total: int) -> bool:
    return tiles >= 0 and (tiles == 0 or total % tiles == 0)


def _divides_evenly(config: FlashForwardKernelConfig) -> bool:
    """Whether copy passes cover Q and blocks of K and V.  Of one row a pass covers as many chunks
    as the power of two in a row's chunks."""
    blocks = ((config.B_r, config.d_head), (config.B_c, config.d_head), (config.B_c, config.d_v))
    chunks = [(rows, d // CHUNK_ELEMENTS) for rows, d in blocks]
    return all(rows * (n & -n) % config.threads == 0 for rows, n in chunks)


Check = Callable[[FlashForwardKernelConfig], bool]

# Name, sentence, test.  kernels/sm80/constraints.cuh asserts the same with the same sentences.
CONSTRAINTS: tuple[tuple[str, str, Check], ...] = (
    (
        "n_warps_fit_a_cta",
        "n_warps must be between 1 and 32, the warps of one CTA",
        lambda c: 1 <= c.n_warps <= 32,
    ),
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
        "warps_own_whole_mma_tiles",
        "B_r must be a multiple of 16 * n_warps, so that every warp owns whole 16-row mma tiles",
        lambda c: c.B_r >= MMA_M and c.B_r % (MMA_M * c.n_warps) == 0,
    ),
    (
        "kv_block_multiple_of_k_step",
        "B_c must be a multiple of 16, the k-step of the second product",
        lambda c: c.B_c >= MMA_K and c.B_c % MMA_K == 0,
    ),
    (
        "copies_divide_evenly",
        "the 16-byte chunks of a block must divide evenly among the threads",
        lambda c: c.ping_pong or _divides_evenly(c),
    ),
    (
        "eager_needs_async",
        "eager_load_blocks needs async_copy: an ordinary load cannot run ahead of the arithmetic",
        lambda c: c.async_copy or not c.eager_load_blocks,
    ),
    (
        "q_tiles_divide_d_head",
        "Q_mma_load_K_tiles must be 0 or divide d_head / 16, the k-tiles of the first product",
        lambda c: _divides(c.Q_mma_load_K_tiles, c.d_head // MMA_K),
    ),
    (
        "k_tiles_divide_d_head",
        "K_mma_load_K_tiles must be 0 or divide d_head / 16, the k-tiles of the first product",
        lambda c: _divides(c.K_mma_load_K_tiles, c.d_head // MMA_K),
    ),
    (
        "v_tiles_divide_kv_block",
        "V_mma_load_K_tiles must be 0 or divide B_c / 16, the k-tiles of the second product",
        lambda c: _divides(c.V_mma_load_K_tiles, c.B_c // MMA_K),
    ),
    (
        "kv_stages_in_range",
        "kv_stages must be between 1 and 8",
        lambda c: 1 <= c.kv_stages <= 8,
    ),
    (
        "stages_need_eager",
        "several kv_stages need eager_load_blocks, which fills them ahead",
        lambda c: c.kv_stages == 1 or c.eager_load_blocks,
    ),
    (
        "rescale_threshold_in_range",
        "rescale_threshold must be between 0 and 15: P reaches 2 to its power, fp16 ends at 65504",
        lambda c: 0 <= c.rescale_threshold <= 15,
    ),
    (
        "rescale_needs_opt_softmax",
        "a rescale_threshold needs optimized_softmax",
        lambda c: c.rescale_threshold == 0 or c.optimized_softmax,
    ),
    (
        "ping_pong_warps",
        "ping_pong needs 8 or 12 warps, two or three for each of the four schedulers",
        lambda c: not c.ping_pong or c.n_warps in (8, 12),
    ),
    (
        "ping_pong_copies",
        "ping_pong needs async_copy, eager_load_blocks and swizzled: bulk copies are all that",
        lambda c: not c.ping_pong or (c.async_copy and c.eager_load_blocks and c.swizzled),
    ),
    (
        "ping_pong_stages",
        "ping_pong needs two kv_stages or more: a place is refilled while the next is read",
        lambda c: not c.ping_pong or c.kv_stages >= 2,
    ),
    (
        "ping_pong_boxes",
        "ping_pong copies boxes of at most 256 rows: B_c and the rows of a turn must fit",
        lambda c: not c.ping_pong or (c.B_c <= BOX_ROWS and 4 * c.B_r <= BOX_ROWS * c.n_warps),
    ),
    (
        "ping_pong_tiles",
        "ping_pong streams fragments one k-tile ahead: load tiles must be 0 or 1 for Q, 1 for K "
        "and V, without buffer",
        lambda c: (
            not c.ping_pong
            or (
                c.Q_mma_load_K_tiles <= 1
                and c.K_mma_load_K_tiles == c.V_mma_load_K_tiles == 1
                and not c.mma_double_buffer_loads
            )
        ),
    ),
    (
        "ping_pong_softmax",
        "ping_pong does its softmax between turns, so interleaved_softmax has no place in it",
        lambda c: not (c.ping_pong and c.interleaved_softmax),
    ),
    (
        "order_needs_ping_pong",
        "a product_order is that of a turn, so it needs ping_pong",
        lambda c: c.ping_pong or c.product_order == ProductOrder.MEASURED,
    ),
)


def device_rejection(limits: ArchLimits) -> Rejected | None:
    """Why no config runs on a device with `limits`, or None."""
    if limits.compute_capability < (8, 0):
        return Rejected("compute_capability", f"needs sm_80 or later, the device is {limits.arch}")
    return None


def constraints(config: FlashForwardKernelConfig, limits: ArchLimits) -> Rejected | None:
    """The first reason why `config` cannot run on a device with `limits`, or None."""
    if (why := device_rejection(limits)) is not None:
        return why
    for name, sentence, holds in CONSTRAINTS:
        if not holds(config):
            return Rejected(name, sentence)
    if config.ping_pong and limits.compute_capability < PING_PONG_CAPABILITY:
        return Rejected(
            "ping_pong_needs_9_0",
            f"ping_pong needs bulk tensor copies, sm_90 or later; the device is {limits.arch}",
        )
    if config.smem_bytes > limits.smem_per_block_bytes:
        return Rejected(
            "smem_fits",
            f"needs {config.smem_bytes / 1024:g} KiB of shared memory, "
            f"{limits.arch} allows {limits.smem_per_block_bytes / 1024:g} KiB per CTA",
        )
    return None
