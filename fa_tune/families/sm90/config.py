"""The `sm90` family: wgmma and TMA kernels for compute capability 9.0.

`Sm90Config` declares every knob once; the short form, the C++ struct, the constraints and the
launch geometry are all derived from it.  docs/kernel-sm90.md describes the kernel.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import IntEnum

from fa_tune.core.model import DType
from fa_tune.families.fields import (
    choice_field,
    coerce,
    count_field,
    cpp_literal,
    flag_field,
    number_field,
    tuple_field,
)

GROUP_ROWS = 64  # of a wgmma, and so of a consumer warpgroup
PANEL_COLUMNS = 64  # 128 bytes, the widest swizzle
BARRIER_BYTES = 8
TILE_SLOTS = 2  # tiles that the producer may be ahead
TILE_SLOT_BYTES = 16  # a tile as the producer passes it on
# Registers per thread that accumulators and operands may take, by consumer warpgroups and CTAs per
# multiprocessor: alone, and in a cluster, whose producers need more.  What stays of the registers
# that setmaxnreg can give the consumers is for everything else.
REGISTER_BUDGET = {
    (1, 1): (212, 212),
    (1, 2): (204, 188),
    (1, 3): (104, 88),
    (1, 4): (72, 56),
    (2, 1): (212, 204),
    (2, 2): (72, 64),
    (3, 1): (128, 124),
    (4, 1): (88, 64),
}
PIN_REGISTERS = 8  # more that are live at once where the exponentials may not move
# Registers besides the accumulators of one wgmma when a CTA begins, before setmaxnreg.
ENTRY_OVERHEAD = 30


class Rescale(IntEnum):
    """When O is brought to the new maximum of its rows."""

    EACH_BLOCK = 0
    BEFORE_PRODUCT = 1
    LAZY = 2
    TRUST = 3

    @property
    def word(self) -> str:
        """In the short form."""
        return ("", "early_rescale", "lazy_rescale", "trusting_rescale")[self]


class Scheduler(IntEnum):
    """How CTAs come by their tiles."""

    SINGLE = 0
    STATIC = 1
    DYNAMIC = 2

    @property
    def word(self) -> str:
        """In the short form."""
        return "" if self is Scheduler.SINGLE else self.name.lower()


class Order(IntEnum):
    """The order of tiles."""

    LINEAR = 0
    LONGEST_FIRST = 1
    PAIRED = 2

    @property
    def word(self) -> str:
        """In the short form."""
        return "" if self is Order.LINEAR else self.name.lower()


@dataclass(frozen=True, order=True)
class Sm90Config:
    """One point of the family's knobs, totally ordered by its fields in this order."""

    dtype: DType = tuple_field("element type of Q, K, V and O")
    d_head: int = tuple_field("head dimension")
    B_r: int = tuple_field("query rows per CTA")
    B_c: int = tuple_field("key/value rows per block")
    consumers: int = tuple_field("consumer warpgroups")
    stages: int = count_field("stages", "blocks of K, and of V, that shared memory holds")
    q_stages: int = number_field("q_stages", 1, "tiles of Q that shared memory holds")
    pingpong: bool = flag_field(
        "pingpong", "warpgroups take turns in issuing their products", later=True
    )
    overlap: bool = flag_field(
        "overlap", "softmax while the next scores and the last product are under way", later=True
    )
    pin: bool = flag_field(
        "pin", "keep the exponentials before the wait for the last product", later=True
    )
    q_registers: bool = flag_field(
        "q_registers", "Q in registers, not in shared memory", later=True
    )
    carry: bool = flag_field(
        "carry", "a tile's last product together with the next tile's scores", later=True
    )
    rescale: Rescale = choice_field(
        Rescale.EACH_BLOCK,
        "when O is brought to a new maximum: after each block's product, before the next one's, "
        "only when the maximum has grown by more than a factor of 2^8, or when the sum of a "
        "block's exponentials shows that it may have, without a maximum in other blocks",
    )
    scheduler: Scheduler = choice_field(
        Scheduler.SINGLE,
        "a CTA takes one tile, every n-th tile, or the next one whenever it is done",
    )
    order: Order = choice_field(
        Order.LINEAR,
        "tiles head by head; with a causal mask longest first within sections of heads; or in "
        "pairs of equal work",
    )
    v_stages: int = number_field(
        "v_stages", 0, "blocks of V that shared memory holds; 0: as many as of K"
    )
    m_tiles: int = number_field("m_tiles", 1, "tiles of 64 query rows of a consumer warpgroup")
    cluster: int = number_field(
        "cluster", 1, "CTAs that load K and V together, for neighbouring row blocks of a head"
    )
    ctas: int = number_field("ctas", 1, "CTAs that a multiprocessor holds at a time")
    split_diagonal: bool = flag_field(
        "split_diagonal",
        "no softmax for the upper half of a first block that a causal mask hides from a warpgroup",
        later=True,
    )
    early_look: bool = flag_field(
        "early_look", "look for the next blocks' arrival when a stage is given back", later=True
    )
    stagger: bool = flag_field(
        "stagger",
        "a thread's second row has its maximum under the first's exponentials",
        later=True,
    )

    def __post_init__(self) -> None:
        coerce(self)

    def __str__(self) -> str:
        return self.short_form()

    def short_form(self) -> str:
        """`sm90(FP16, 128, 128x176, 2): stages_2+pingpong+overlap`."""
        words = [f"stages_{self.stages}"]
        for f in dataclasses.fields(self):
            value, meta = getattr(self, f.name), f.metadata
            match meta["place"]:
                case "flag" if value:
                    words.append(meta["word"])
                case "number" if value != f.default:
                    words.append(f"{meta['word']}_{value}")
                case "choice" if value != f.default:
                    words.append(value.word)
        numbers = f"{self.dtype.name}, {self.d_head}, {self.B_r}x{self.B_c}, {self.consumers}"
        return f"sm90({numbers}): {'+'.join(words)}"

    def to_cpp_struct(self) -> str:
        """The config as a C++ literal of the generated struct."""
        values = (cpp_literal(getattr(self, f.name)) for f in dataclasses.fields(self))
        return f"Sm90Config{{{', '.join(values)}}}"

    def kernel_name(self) -> str:
        """The kernel template's name."""
        return "sm90_forward_kernel"

    @property
    def threads(self) -> int:
        """Threads per CTA: the consumers and one warpgroup that loads."""
        return 128 * (1 + self.consumers)

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory; kernels/sm90/shared_memory.cuh has the same sum."""
        q = self.q_stages * self.B_r * self.d_head
        kv_stages = self.stages + (self.v_stages or self.stages)
        kv = kv_stages * self.B_c * self.d_head
        slots = TILE_SLOTS if self.persistent else 0
        words = 2 * self.q_stages * self.consumers + 2 * kv_stages + 2 * slots + 1
        return (q + kv) * self.dtype.size_bytes + slots * TILE_SLOT_BYTES + words * BARRIER_BYTES

    @property
    def operand_registers(self) -> int:
        """Registers per thread of O, S, P and, with `q_registers`, Q; `pin` takes a few more."""
        q = self.d_head // 4 if self.q_registers else 0
        tile = self.d_head // 2 + self.B_c // 2 + self.B_c // 4 + q
        return self.m_tiles * tile + (PIN_REGISTERS if self.pin else 0)

    @property
    def register_budget(self) -> int:
        """Registers of a thread for them.  Raises KeyError where too many CTAs leave none."""
        return REGISTER_BUDGET[self.consumers, self.ctas][self.cluster > 1]

    @property
    def entry_registers(self) -> int:
        """Registers that every thread begins with; one wgmma's accumulators must fit in them."""
        return min(255, 65536 // (self.threads * self.ctas) // 8 * 8)

    @property
    def persistent(self) -> bool:
        """Whether CTAs go on to further tiles."""
        return self.scheduler is not Scheduler.SINGLE
