"""The knobs of the `sm80_bwd` family, backward passes for compute capability 8.0 and later.

docs/kernel-sm80-bwd.md describes the kernels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from fa_tune.core.workload import DType
from fa_tune.families.fields import (
    ConfigBase,
    d_head_v_field,
    flag_field,
    number_field,
    tuple_field,
)

PADDED_TO = 128  # query rows of a head in the workspace, and of a CTA that prepares them


@dataclass(frozen=True, order=True)
class Sm80BackwardConfig(ConfigBase):
    """One point of the family's knobs, totally ordered by its fields in this order."""

    HEAD = "sm80_bwd({c.dtype.name}, {c.d_head}, {c.B_r}, {c.B_c}, {c.n_warps})"

    dtype: DType = tuple_field("element type of Q, K, V and O")
    d_head: int = tuple_field("head dimension")
    B_r: int = tuple_field("query rows of a step; with two_pass, key rows of a step of dQ's pass")
    B_c: int = tuple_field("key rows of a CTA; with two_pass, query rows of a CTA of dQ's pass")
    n_warps: int = tuple_field("warps per CTA")
    column_warps: int = number_field(
        "column_warps",
        1,
        "warps that share rows of P and dS, by way of shared memory; with 1 they stay in registers",
    )
    stages: int = number_field("stages", 1, "blocks of Q and of dO that shared memory holds")
    ctas: int = number_field("ctas", 1, "CTAs of a multiprocessor that registers are left for")
    two_pass: bool = flag_field(
        "two_pass",
        "dQ by a pass of its own, without sums in memory: the same bits always",
        later=True,
    )
    d_head_v: int = d_head_v_field()

    def kernel_name(self) -> str:
        """The kernel template's name."""
        return "sm80_backward_kernel"

    def repeatable(self) -> Self:
        """With dQ by a pass of its own."""
        return replace(self, two_pass=True)

    @property
    def threads(self) -> int:
        """Threads per CTA."""
        return 32 * self.n_warps

    @property
    def row_warps(self) -> int:
        """Warps with rows of their own."""
        return self.n_warps // self.column_warps

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of a CTA: kernels/sm80/bwd/shared_memory.cuh."""
        blocks = (self.B_c + self.stages * self.B_r) * (self.d_head + self.d_v)
        shared = self.column_warps > 1
        scores = (shared + (shared or not self.two_pass)) * self.B_r * self.B_c
        return (blocks + scores) * self.dtype.size_bytes + 8 * self.stages * self.B_r

    @property
    def query_warps(self) -> int:
        """Warps with query rows of their own in dQ's product of one pass: two, or as many more as
        leave the others whole 16 columns."""
        warps = min(2, self.n_warps)
        while warps < self.n_warps and self.d_head // 16 % (self.n_warps // warps):
            warps *= 2
        return warps
