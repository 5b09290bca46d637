"""What an operation supplies: tensors, work, compile-time traits, and how a result is judged.

An operation is pure.  Its reference, which needs torch, stands in `fa_tune.gpu.reference` under
the operation's name; the kernels that compute it are those of the families that name it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from fa_tune.core.workload import DType, Workload
from fa_tune.ops.traits import Traits

# What the criterion allows beyond twice the reference's own error: one rounding of an output
# near 1, which a reference that happens to be exact would not grant.
FLOOR = {DType.FP16: 2.0**-10, DType.BF16: 2.0**-7}
FP32_BYTES = 4


@dataclass(frozen=True)
class TensorSpec:
    """A tensor of one workload, C-contiguous unless a caller has views.

    `dtype` None: fp32.  `tolerance` of an output, absolute and relative; None: it is judged by
    the error of the same-precision reference (`Operation.error_limit`).
    """

    name: str  # of launch arguments and references
    shape: tuple[int, ...]
    dtype: DType | None
    output: bool = False
    tolerance: float | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * (self.dtype.size_bytes if self.dtype else FP32_BYTES)


class Operation(Protocol):
    """One thing that is computed.  `name` is what `Workload.op` says."""

    name: str

    def tensors(self, workload: Workload) -> tuple[TensorSpec, ...]:
        """All tensors of a workload, in the order of a launch; what is not wanted is absent."""

    # Work -----------------------------------------------------------------------------------

    def unmasked_pairs(self, workload: Workload) -> int:
        """Query–key pairs of one head that attend."""

    def visited_tiles(self, workload: Workload, B_r: int, B_c: int) -> int:
        """B_r×B_c tiles of one head that a kernel computes, each of them whole."""

    def matmul_flop(self, workload: Workload) -> int:
        """Operations of the matrix products, as the literature counts them."""

    def attn_flop(self, workload: Workload) -> int:
        """The same with the softmax."""

    def total_flop(self, workload: Workload, B_r: int, B_c: int) -> int:
        """All that a tiled kernel does.  Raises InvalidConfig when a block does not divide its
        sequence: the model counts whole tiles only."""

    # Compiling ------------------------------------------------------------------------------

    def traits(self, workload: Workload, blocks: tuple[int, int], *, lse: bool = False) -> Traits:
        """The compile-time facts of a workload for a kernel of these (query, key) blocks.  `lse`:
        with the log-sum-exp, whatever the workload says."""

    # Checking -------------------------------------------------------------------------------

    def verification_workloads(
        self, blocks: tuple[int, int], d_head: int, dtype: DType, traits: Traits
    ) -> Sequence[Workload]:
        """What a kernel with these traits is checked on, each problem once."""

    def error_limit(self, reference_max_abs_error: float, dtype: DType) -> float:
        """The largest error against fp32 that passes, given that of the same computation in the
        kernel's own precision."""


def twice_and_floor(reference_max_abs_error: float, dtype: DType) -> float:
    """Twice the same-precision reference's error against fp32, plus the floor of the dtype."""
    return 2 * reference_max_abs_error + FLOOR[dtype]
