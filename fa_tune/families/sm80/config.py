"""The `sm80` family's config: mma.sync kernels for compute capability 8.0 and later.

`FlashForwardKernelConfig` declares every knob once; the short form, the C++ struct, the
constraints and the launch geometry are all derived from it.  docs/kernel-sm80.md describes the
kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fa_tune.core.workload import DType, Workload
from fa_tune.families.constraints import whole_chunk_groups
from fa_tune.families.fields import (
    CPP_D_V,
    Choice,
    ConfigBase,
    choice_field,
    d_head_v_field,
    flag_field,
    number_field,
    tiles_field,
    tuple_field,
)
from fa_tune.operations import flops

PANEL_COLUMNS = 64  # columns of one bulk tensor copy with 128-byte swizzle
BARRIER_BYTES = 1024  # room for the tags of blocks and the mbarriers, behind the tiles


_CPP_METHODS = f"""
{CPP_D_V}
    // Dynamic shared memory of one CTA in bytes: Q (later O), and kv_stages blocks of K and of V.
    // Rows are whole groups of 32 columns; with ping_pong of 64, O has rows of its own, and tags
    // and barriers follow.
    FA_HOST_DEVICE constexpr int smem_bytes(int elem_size = 2) const {{
        const int kv_rows = kv_stages * B_c;
        const int panels = (d_head + 63) / 64 + (d_v() + 63) / 64;
        const int row = (d_head + 31) / 32 * 32, row_v = (d_v() + 31) / 32 * 32;
        return ping_pong
                   ? (B_r + kv_rows) * panels * 64 * elem_size + 1024
                   : (B_r * (row > row_v ? row : row_v) + kv_rows * (row + row_v)) * elem_size;
    }}

    // CTAs that max_smem_bytes of shared memory per multiprocessor hold, each with the 1 KiB
    // that the system adds to it.  Registers and threads may allow fewer.
    FA_HOST_DEVICE constexpr int num_ctas_per_sm(int max_smem_bytes) const {{
        return max_smem_bytes / (smem_bytes() + 1024);
    }}

"""


class ProductOrder(Choice):
    """Orders of a ping-pong slot's loads and products: kernels/sm80/fwd/product_order.cuh."""

    MEASURED = 0
    FEW_AHEAD = 1
    FAR_AHEAD = 2
    SHORT_RUNS = 3
    SHARED_MAXIMA = 4


@dataclass(frozen=True, order=True)
class FlashForwardKernelConfig(ConfigBase):
    """One point of the family's knobs, totally ordered by its fields in this order."""

    HEAD = "({c.dtype.name}, {c.d_head}, {c.B_r}, {c.B_c}, {c.n_warps})"
    CPP_METHODS = _CPP_METHODS
    CPP_HEADER = "flash_forward_kernel_config.h"

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

    def short_form(self, include_d_head: bool = True, include_tup: bool = True) -> str:
        """`(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax`.

        `include_d_head` and `include_tup` leave out the head dimension or the whole tuple.
        """
        if not include_tup:
            return "+".join(self.words())
        text = super().short_form()
        return text if include_d_head else text.replace(f", {self.d_head}", "", 1)

    def kernel_name(self) -> str:
        """The kernel template's name."""
        return "flash_forward_ping_pong_kernel" if self.ping_pong else "flash_forward_kernel"

    @property
    def exact(self) -> bool:
        """Whether O is brought to the maximum of every block."""
        return self.rescale_threshold == 0

    def as_exact(self) -> FlashForwardKernelConfig:
        """With the maximum of every block."""
        return replace(self, rescale_threshold=0)

    @property
    def threads(self) -> int:
        """Threads per CTA."""
        return 32 * self.n_warps

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory: Q (later O), and kv_stages blocks of K and of V.  Rows are whole
        groups of 32 columns; with ping_pong of 64, O has rows of its own, and tags and barriers
        follow."""
        kv_rows = self.kv_stages * self.B_c
        if not self.ping_pong:
            row, row_v = whole_chunk_groups(self.d_head), whole_chunk_groups(self.d_v)
            elements = self.B_r * max(row, row_v) + kv_rows * (row + row_v)
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
