"""The `sm90` family: wgmma and TMA kernels for compute capability 9.0.

`Sm90Config` declares every knob once; the short form, the C++ struct, the constraints and the
launch geometry are all derived from it.  docs/kernel-sm90.md describes the kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

from fa_tune.core.workload import DType
from fa_tune.families.fields import (
    CPP_D_V,
    Choice,
    ConfigBase,
    choice_field,
    count_field,
    d_head_v_field,
    flag_field,
    number_field,
    tuple_field,
)

MMA_K = 16  # the k-step of a wgmma with 16-bit elements
GROUP_ROWS = 64  # of a wgmma, and so of a consumer warpgroup
PANEL_COLUMNS = 64  # 128 bytes, the widest swizzle
BARRIER_BYTES = 8
SCRATCH_BYTES = 8
CORRECTION_BYTES = 16  # how many corrections each warp of a warpgroup made
FP32_BYTES = 4
MAX_SPLITS = 8  # CTAs, on every device
ROW_PART_BYTES = 8  # of each row, with splits: a maximum and a sum
TILE_SLOTS = 2  # tiles that the producer may be ahead
TILE_SLOT_BYTES = 16  # a tile as the producer passes it on
# Registers per thread that accumulators and operands may take, by consumer warpgroups and CTAs per
# multiprocessor.  What stays of the registers that setmaxnreg can give the consumers is for
# everything else.
REGISTER_BUDGET = {
    (1, 1): 212,
    (1, 2): 204,
    (1, 3): 104,
    (1, 4): 72,
    (2, 1): 212,
    (2, 2): 72,
    (3, 1): 128,
    (4, 1): 88,
}
EXACT_MAX_HEADS = (64, 128)
# Registers besides the accumulators of one wgmma when a CTA begins, before setmaxnreg.
ENTRY_OVERHEAD = 30


def chosen_as(d_head: int) -> int:
    """The head dimension whose choices one has: below 64, as wide as a panel, those of 64."""
    return max(d_head, PANEL_COLUMNS)


def _in_panels(columns: int) -> int:
    """Columns of the whole panels that hold so many."""
    return -(-columns // PANEL_COLUMNS) * PANEL_COLUMNS


class Rescale(IntEnum):
    """When O is brought to a new maximum of its rows."""

    EACH_BLOCK = 0
    THRESHOLDED = 1
    STALE_MAX = 2
    EXACT_MAX = 3
    WATCHED_MAX = 4

    @property
    def word(self) -> str:
        """In the short form."""
        return ("", "thresholded_rescale", "stale_max", "exact_max", "watched_max")[self]


class Scheduler(Choice):
    """How CTAs come by their tiles."""

    SINGLE = 0
    STATIC = 1
    DYNAMIC = 2


class Order(Choice):
    """The order of tiles."""

    LINEAR = 0
    LONGEST_FIRST = 1


@dataclass(frozen=True, order=True)
class Sm90Config(ConfigBase):
    """One point of the family's knobs, totally ordered by its fields in this order.

    Kept though nothing recorded was fastest with them: EACH_BLOCK, SINGLE, STATIC and LINEAR are
    the first steps of the ladder, and THRESHOLDED is for data whose maxima grow.
    """

    HEAD = "sm90({c.dtype.name}, {c.d_head}, {c.B_r}x{c.B_c})"
    CPP_METHODS = f"""
    // Whether O leaves by a place of its own, because Q of the next tile comes before O is there.
    FA_HOST_DEVICE constexpr bool o_apart() const {{ return cross_tile_overlap && q_stages == 1; }}
{CPP_D_V}
    // Columns of tiles, whole k-steps: copies add zeros behind d_head and d_v.
    FA_HOST_DEVICE constexpr int padded_d() const {{ return (d_head + 15) / 16 * 16; }}
    FA_HOST_DEVICE constexpr int padded_d_v() const {{ return (d_v() + 15) / 16 * 16; }}

    // Query rows per CTA.
    FA_HOST_DEVICE constexpr int B_r() const {{ return 64 * mma_warpgroups; }}

"""

    dtype: DType = tuple_field("element type of Q, K, V and O")
    d_head: int = tuple_field("head dimension")
    mma_warpgroups: int = tuple_field("consumer warpgroups, of 64 query rows each")
    B_c: int = tuple_field("key/value rows per block")
    stages: int = count_field("stages", "blocks of K, and of V, that shared memory holds")
    q_stages: int = number_field("q_stages", 1, "tiles of Q that shared memory holds")
    pingpong: bool = flag_field(
        "pingpong", "warpgroups take turns in issuing their products", later=True
    )
    overlap: bool = flag_field(
        "overlap", "softmax while the next scores and the last product are under way", later=True
    )
    cross_tile_overlap: bool = flag_field(
        "cross_tile_overlap",
        "a tile's last product together with the next tile's scores",
        later=True,
    )
    rescale: Rescale = choice_field(
        Rescale.EACH_BLOCK,
        "when O is brought to a new maximum: after each block's product, only when the maximum has "
        "grown by more than a factor of 2^8, when the sum of a block's exponentials shows that it "
        "may have, without a maximum in other blocks, only when it has grown at all, or as "
        "stale_max but in tiles after one where sums often showed it, when a maximum has",
    )
    scheduler: Scheduler = choice_field(
        Scheduler.SINGLE,
        "a CTA takes one tile, every n-th tile, or the next one whenever it is done",
    )
    order: Order = choice_field(
        Order.LINEAR,
        "tiles head by head, or with a causal mask longest first within groups of heads",
    )
    min_ctas_per_sm: int = number_field(
        "min_ctas_per_sm", 1, "CTAs that a multiprocessor holds at a time"
    )
    early_test_wait: bool = flag_field(
        "early_test_wait",
        "ask for the next blocks' arrival when a stage is given back",
        later=True,
    )
    single_loop: bool = flag_field(
        "single_loop",
        "blocks with a causal mask go through the loop of those without, with stale_max, exact_max "
        "or watched_max",
        later=True,
    )
    d_head_v: int = d_head_v_field()
    rows_in_turn: bool = flag_field(
        "rows_in_turn",
        "with stale_max, exact_max or watched_max, exponentials of a thread's first row beside the "
        "maximum of its second",
        later=True,
    )
    adaptive_max: bool = flag_field(
        "adaptive_max",
        "with stale_max or watched_max, first maxima look at the warp's other rows, and maxima "
        "that grow steadily are those of a sample",
        later=True,
    )
    splits: int = number_field("splits", 1, "CTAs of a cluster, which divide the keys of a tile")

    def kernel_name(self) -> str:
        """The kernel template's name."""
        return "sm90_forward_kernel"

    @property
    def exact(self) -> bool:
        """Whether the largest weight of a row is 1, which rounding does not change."""
        return self.rescale in (Rescale.EACH_BLOCK, Rescale.EXACT_MAX)

    def as_exact(self) -> Sm90Config:
        """With the maximum of every block; with exact_max where that was measured, and faster."""
        if self.exact:
            return self
        measured = chosen_as(self.d_head) in EXACT_MAX_HEADS
        if measured and self.rescale is not Rescale.THRESHOLDED:
            return replace(self, rescale=Rescale.EXACT_MAX, adaptive_max=False)
        return replace(
            self,
            rescale=Rescale.EACH_BLOCK,
            single_loop=False,
            rows_in_turn=False,
            adaptive_max=False,
        )

    @property
    def B_r(self) -> int:
        """Query rows per CTA."""
        return GROUP_ROWS * self.mma_warpgroups

    @property
    def threads(self) -> int:
        """Threads per CTA: the consumers and one warpgroup that loads."""
        return 128 * (1 + self.mma_warpgroups)

    @property
    def o_apart(self) -> bool:
        """Whether O leaves by a place of its own, because the next tile's Q comes before it."""
        return self.cross_tile_overlap and self.q_stages == 1

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory: kernels/sm90/fwd/shared_memory.cuh, SharedMemory."""
        q = self.q_stages * self.B_r * max(map(_in_panels, (self.d_head, self.d_v)))
        # One panel of O, of which the next tile's Q has taken the place.
        o = self.B_r * PANEL_COLUMNS if self.o_apart else 0
        slots = TILE_SLOTS if self.persistent else 0
        barriers = 2 * self.q_stages * self.mma_warpgroups + 4 * self.stages + 2 * slots
        small = slots * TILE_SLOT_BYTES + barriers * BARRIER_BYTES + SCRATCH_BYTES
        if self.rescale is Rescale.WATCHED_MAX:
            small += self.mma_warpgroups * CORRECTION_BYTES
        if self.splits > 1:
            small += self.B_r * ROW_PART_BYTES
        return (q + o) * self.dtype.size_bytes + self.ring_bytes + small

    @property
    def ring_bytes(self) -> int:
        """Shared memory of the rings of K and V."""
        columns = _in_panels(self.d_head) + _in_panels(self.d_v)
        return self.stages * self.B_c * columns * self.dtype.size_bytes

    @property
    def part_bytes(self) -> int:
        """Of a tile of O in fp32, which a CTA of a cluster puts in the rings' place."""
        return self.B_r * _in_panels(self.d_v) * FP32_BYTES

    @property
    def padded_d_v(self) -> int:
        """Columns of a tile of V and O, whole k-steps: copies add zeros behind d_v."""
        return -(-self.d_v // MMA_K) * MMA_K

    @property
    def operand_registers(self) -> int:
        """Registers per thread of O, S and P."""
        return self.padded_d_v // 2 + self.B_c // 2 + self.B_c // 4

    @property
    def register_budget(self) -> int:
        """Registers of a thread for them.  Raises KeyError where too many CTAs leave none."""
        return REGISTER_BUDGET[self.mma_warpgroups, self.min_ctas_per_sm]

    @property
    def entry_registers(self) -> int:
        """Registers that every thread begins with; one wgmma's accumulators must fit in them."""
        return min(255, 65536 // (self.threads * self.min_ctas_per_sm) // 8 * 8)

    @property
    def persistent(self) -> bool:
        """Whether CTAs go on to further tiles."""
        return self.scheduler is not Scheduler.SINGLE
