"""What a kernel family supplies.  Adding one means a Python file beside this one, a kernel
folder, a line in `families/__init__.py`, and a test class inheriting the contract tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from fa_tune.arch import ArchLimits
from fa_tune.model import DType, Rejected, Workload

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class TensorArg:
    """A device tensor as a launch sees it: address and element strides.

    Q, K, V, O: strides of (batch, seq, head), d_head contiguous.  Address 0 = not given.
    """

    address: int
    strides: tuple[int, int, int] = (0, 0, 0)


@dataclass(frozen=True)
class LaunchArgs:
    """The tensors and scalars of one launch.

    `lse` is fp32 [batch, heads, seq_len_q], contiguous.  `diagonal`: with a causal mask,
    query i sees key j when j ≤ i + diagonal (0 aligns top-left).
    """

    q: TensorArg
    k: TensorArg
    v: TensorArg
    o: TensorArg
    lse: TensorArg = TensorArg(0)
    softmax_scale: float | None = None  # None: 1 / sqrt(d_head)
    diagonal: int = 0


@dataclass(frozen=True)
class LaunchGeometry:
    """Grid and block in CUDA's (x, y, z) order; dynamic shared memory in bytes."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_smem_bytes: int


class KernelFamily(Protocol):
    """One kernel template with its config class, constraints and launch geometry.

    `config` parameters are objects of the family's own config class.
    """

    name: str

    def parse(self, short_form: str) -> Any:
        """The config of a short form; raises InvalidConfig."""

    def short_form(self, config: Any) -> str:
        """The short form of a config; `parse` reads it back."""

    def constraints(self, config: Any, limits: ArchLimits) -> Rejected | None:
        """The first reason why the config cannot run on such a device, or None."""

    def default_config(self, d_head: int, dtype: DType) -> Any:
        """What a user without tuning results should run."""

    def traits(self, config: Any, workload: Workload, *, lse: bool = False) -> str:
        """The compile-time facts of a workload, as text."""

    def source_files(self) -> Mapping[str, str]:
        """Include name -> text of every file a kernel of the family may include."""

    def entry_source(self, config: Any, traits: str) -> str:
        """The translation unit given to the compiler."""

    def name_expression(self, config: Any, traits: str) -> str:
        """The template instantiation to ask the compiler for."""

    def compile_options(self, arch: str) -> Sequence[str]:
        """Compiler options beyond the architecture."""

    def threads(self, config: Any) -> int:
        """Threads per CTA."""

    def dynamic_smem_bytes(self, config: Any) -> int:
        """Dynamic shared memory per CTA in bytes."""

    def geometry(self, config: Any, workload: Workload) -> LaunchGeometry:
        """Grid, block and shared memory of a launch."""

    def kernel_args(self, config: Any, workload: Workload, args: LaunchArgs) -> list[np.ndarray]:
        """The kernel's parameters, each a NumPy array of one element passed by value."""

    def blocks(self, config: Any) -> tuple[int, int]:
        """(query rows, key rows) of a tile, for the FLOP model."""
