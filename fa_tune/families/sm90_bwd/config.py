"""The knobs of the `sm90_bwd` family, backward passes for compute capability 9.0.

docs/kernel-sm90-bwd.md describes the kernels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from fa_tune.core.workload import DType
from fa_tune.families.fields import (
    CPP_D_V,
    ConfigBase,
    d_head_v_field,
    flag_field,
    number_field,
    tuple_field,
)

KEYS = 128  # of a CTA: 64 of each consumer warpgroup
PADDED_TO = 128  # query rows of a head in the workspace, and of a CTA of a pass over queries
DO_STAGES, DS_STAGES, DQ_V_STAGES = 2, 2, 2
WIDE_ROWS = 64  # above d_head 128: keys of half of a tile, and queries of a step
SMALL_BYTES = 512  # barriers and slots of tiles
PANEL_COLUMNS = 64  # shared memory has whole panels of so many
TILE_D = (32, 48, 64, 96, 128, 192, 256)  # head dimensions of tiles


def rows_of_step(d_head: int) -> int:
    """Query rows of a step: two warpgroups have 64 x 64 of dQ each, or half of its columns."""
    return 128 if d_head <= 64 else 64


@dataclass(frozen=True, order=True)
class Sm90BackwardConfig(ConfigBase):
    """One point of the family's knobs, totally ordered by its fields in this order."""

    HEAD = "sm90_bwd({c.dtype.name}, {c.d_head}, {c.B_r}, {c.B_c})"
    CPP_METHODS = f"""
{CPP_D_V}
    // Columns of tiles: copies add zeros behind d_head and d_v.
    FA_HOST_DEVICE constexpr int padded_d() const {{ return padded(d_head); }}
    FA_HOST_DEVICE constexpr int padded_d_v() const {{ return padded(d_v()); }}
    FA_HOST_DEVICE static constexpr int padded(int d) {{
        if (d <= 64) return (d + 15) / 16 * 16;
        return d <= 96 ? 96 : d <= 128 ? 128 : d <= 192 ? 192 : 256;
    }}

"""

    dtype: DType = tuple_field("element type of Q, K, V and O")
    d_head: int = tuple_field("head dimension")
    B_r: int = tuple_field("query rows of a step")
    B_c: int = tuple_field("key rows of a CTA")
    q_stages: int = number_field("q_stages", 2, "blocks of Q that shared memory holds")
    turns: bool = flag_field("turns", "warpgroups take turns in issuing their products", later=True)
    two_pass: bool = flag_field(
        "two_pass",
        "dQ by a pass of its own, without sums in memory: the same bits always",
        later=True,
    )
    dynamic: bool = flag_field(
        "dynamic", "a CTA takes the next tile whenever it is done", later=True
    )
    dq_keys: int = number_field("dq_keys", 96, "with two_pass, key rows of a step of dQ's pass")
    d_head_v: int = d_head_v_field()
    same_step: bool = flag_field(
        "same_step",
        "dQ in the step that makes its dS, for which the warpgroups meet",
        later=True,
    )
    cluster: int = number_field(
        "cluster", 1, "CTAs of a cluster, which divide the queries of a block of keys"
    )
    dq_cluster: int = number_field(
        "dq_cluster", 1, "with two_pass, CTAs of a cluster that divide the keys of dQ's pass"
    )

    def kernel_name(self) -> str:
        """The kernel template's name."""
        return "sm90_backward_kernel"

    def repeatable(self) -> Self:
        """With dQ by a pass of its own."""
        if self.two_pass:
            return self
        return replace(self, q_stages=3, two_pass=True, turns=True, same_step=False)

    @property
    def padded_d(self) -> int:
        """Columns of tiles: copies add zeros behind d_head."""
        return next(d for d in TILE_D if d >= self.d_head or d == TILE_D[-1])

    @property
    def is_wide(self) -> bool:
        """Whether dK and dV of 64 keys take up the registers of both warpgroups."""
        return self.d_head > 128

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of the pass over keys: kernels/sm90/bwd/shared_memory.cuh and
        wide_shared_memory.cuh."""
        if self.is_wide:
            return self._wide_smem_bytes
        size, row = self.dtype.size_bytes, _row_bytes(self.d_head, self.dtype)
        kv = 2 * self.B_c * row
        rows = (self.q_stages + DO_STAGES) * self.B_r
        ds = 0 if self.two_pass else DS_STAGES * self.B_r * self.B_c * size
        places = 0 if not self.dynamic else 2 if self.two_pass else int(self.d_head > 64)
        out = places * kv // 2
        return kv + rows * (row + 4) + ds + out + SMALL_BYTES

    @property
    def dq_smem_bytes(self) -> int:
        """The same of the pass over queries."""
        k_stages = 2 if self.is_wide else 3
        of_k, of_v = (_row_bytes(d, self.dtype) for d in (self.d_head, self.d_v))
        of_queries = PADDED_TO * ((1 + self.dynamic) * of_k + of_v)
        of_keys = self.dq_keys * (k_stages * of_k + DQ_V_STAGES * of_v)
        return of_queries + of_keys + SMALL_BYTES

    @property
    def _wide_smem_bytes(self) -> int:
        of_k, of_v = (_row_bytes(d, self.dtype) for d in (self.d_head, self.d_v))
        parts = 2 if self.padded_d == 256 else 1
        q_parts, do_parts = (self.q_stages + 2, 4) if parts == 2 else 2 * (self.q_stages,)
        blocks = WIDE_ROWS * ((parts + q_parts) * of_k + (parts + do_parts) * of_v) // parts
        statistics = 4 * WIDE_ROWS * (q_parts + do_parts)
        return blocks + 4 * WIDE_ROWS**2 + statistics + SMALL_BYTES


def _row_bytes(d: int, dtype: DType) -> int:
    """Of a row of d columns in shared memory."""
    return -(-d // PANEL_COLUMNS) * PANEL_COLUMNS * dtype.size_bytes
