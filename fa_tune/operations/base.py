"""What an operation supplies: tensors, work, compile-time traits, and how a result is judged.

An operation is pure.  Its torch side, a module beside its own that children alone import, makes
inputs and what must come out; the kernels that compute it are those of the families that name it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from fa_tune.core.dtypes import ElementType
from fa_tune.core.workload import DType, Workload
from fa_tune.operations.traits import Traits

if TYPE_CHECKING:
    import torch

Tensors = Mapping[str, "torch.Tensor"]  # by the names of their specs

MAX_TIMES = 2.0  # the reference's largest error that a kernel's may be, and one unit more
# The reference's root mean square error that a kernel's may be, where both are of very many rows.
RMS_TIMES = 1.2
# What chance may add to it, over the square root of the number of rows.  A rounding error is
# uniform between half a unit below and above, so that the standard deviation of its square is 0.89
# of the mean.  The errors of a row may all come of one rounding, that of its largest weight; then
# a mean over n rows is open by 0.89 / sqrt(n), its root by half of that, and the quotient of two
# such roots, the kernel's and the reference's, by 0.63 / sqrt(n).  This is four times that: a
# kernel that is really at 1.2 is refused by chance once in 30000 cases.  With 1000 rows the limit
# is 1.3.
# Faults are beyond it (tests/gpu_jobs/test_judged.py, 768 rows): weights of an fp16 kernel rounded
# to bf16 are at 2 to 6 where no single key has most of the weight, half a percent on a sum in bf16
# at 2.9.  Right kernels whose largest weight is no power of two are at 1.13.
RMS_CHANCE = 2.5
# A root mean square of this many units always passes.  Rounding alone makes 0.2 to 0.3; but where
# most rows see one key, a reference can happen to be exact.
RMS_FLOOR_UNITS = 1 / 8

# What Q, K and V of a verification case are drawn as, or a text of `core.inputs`.  A sink is a key
# that is SINK_NATS above what the others have, for every query.
NORMAL, SINK_FIRST, SINK_LAST = "normal", "sink_first", "sink_last"
SINK_NATS = 12.0


@dataclass(frozen=True)
class Figures:
    """The largest absolute value and the root mean square of an output or of its errors; NaN where
    there is one.  `rows`: as many, were they all alike, give a root mean square that is open to
    chance as much as this one."""

    largest: float
    rms: float
    rows: float = math.inf


@dataclass(frozen=True)
class CheckCase:
    """What a kernel is run on once: a workload, and a word for its inputs."""

    workload: Workload
    inputs: str = NORMAL


@dataclass(frozen=True)
class TensorSpec:
    """A tensor of one workload, C-contiguous unless a caller has views.

    `tolerance` of an output: absolute, or as far as fp32 scores leave it
    open, if that is more; None: it is judged by the errors of the same-precision reference
    (`Operation.error_limits`).  `unread_bytes`: of elements that no query needs, such as the
    room of a cache beyond a sequence, or keys that a window hides from all queries.
    """

    name: str  # of launch arguments and references
    shape: tuple[int, ...]
    dtype: ElementType
    output: bool = False
    tolerance: float | None = None
    unread_bytes: int = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * self.dtype.size_bytes


@dataclass(frozen=True)
class Problem:
    """A workload with its tensors, by the names of their specs."""

    workload: Workload
    inputs: Tensors
    outputs: Tensors


# Enqueues one call on torch's current stream.  None: its results are in the problem's outputs.
Launch = Callable[[], "Tensors | None"]


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

    def verification_cases(
        self,
        blocks: tuple[int, int],
        d_head: int,
        dtype: DType,
        traits: Traits,
        *,
        d_head_v: int = 0,
        thorough: bool = False,
    ) -> Sequence[CheckCase]:
        """What a kernel with these traits is checked on, each problem once.  `d_head_v` 0: as
        `d_head`.  `thorough`: what takes seconds, too."""

    def error_limits(self, reference: Figures, output: Figures, dtype: DType) -> Figures:
        """The largest errors that pass, given those of the same computation in the kernel's own
        precision and the size of the output."""


def reference_limits(reference: Figures, output: Figures, dtype: DType) -> Figures:
    """Twice the reference's largest error and a unit in the last place of the largest output;
    1.2 times its root mean square, and what chance may add with so few rows, or an eighth of a unit
    of the output's."""
    unit = dtype.element.unit_in_the_last_place(output.largest)
    floor = RMS_FLOOR_UNITS * dtype.element.unit_in_the_last_place(output.rms)
    rms = RMS_TIMES * (1.0 + RMS_CHANCE / math.sqrt(reference.rows)) * reference.rms
    return Figures(MAX_TIMES * reference.largest + unit, floor if rms < floor else rms)
