"""What a kernel family supplies.  Adding one means a Python file beside this one, a kernel
folder, a line in `families/__init__.py`, and a test class inheriting the contract tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from fa_tune.arch import ArchLimits
from fa_tune.errors import InvalidConfig
from fa_tune.model import DType, Rejected, Workload

if TYPE_CHECKING:
    import numpy as np
    import torch

CHUNK_BYTES = 16  # the unit of every copy between global and shared memory
ELEMENT_BYTES = 2


@dataclass(frozen=True)
class TensorArg:
    """A device tensor as a launch sees it: address and element strides.

    Q, K, V, O: strides of (batch, seq, head), d_head contiguous.  Address 0 = not given.
    """

    address: int
    strides: tuple[int, int, int] = (0, 0, 0)

    @classmethod
    def of(cls, tensor: torch.Tensor, name: str = "a tensor") -> TensorArg:
        """A [batch, seq, heads, d_head] tensor on the device, a view with any strides.

        Rows are copied in chunks of 16 bytes: raises InvalidConfig, naming `name`, if d_head
        is not contiguous or if a row does not start at a multiple of 16 bytes.
        """
        *outer, last = tensor.stride()
        if tensor.ndim != 4 or (last != 1 and tensor.shape[-1] > 1):
            raise InvalidConfig(
                f"{name} must be [batch, seq, heads, d_head] with d_head contiguous; it has "
                f"shape {tuple(tensor.shape)} and strides {tuple(tensor.stride())}"
            )
        # The stride of an extent of 1 is never used, and torch lets it be anything.
        used = [s if n > 1 else 0 for s, n in zip(outer, tensor.shape, strict=False)]
        strides = (used[0], used[1], used[2])
        if any(v % CHUNK_BYTES for v in (tensor.data_ptr(), *(s * ELEMENT_BYTES for s in used))):
            raise InvalidConfig(
                f"{name} must have every row at a multiple of {CHUNK_BYTES} bytes; it starts at "
                f"address {tensor.data_ptr():#x} and has strides {strides} of 2-byte elements"
            )
        return cls(tensor.data_ptr(), strides)


@dataclass(frozen=True)
class LaunchArgs:
    """The tensors and scalars of one launch.

    `lse` is fp32 [batch, heads, seq_len_q], contiguous; it is written where the kernel was
    compiled with that trait.  `softmax_scale` and `diagonal` (with a causal mask, query i sees
    key j when j ≤ i + diagonal) replace the workload's own.
    """

    q: TensorArg
    k: TensorArg
    v: TensorArg
    o: TensorArg
    lse: TensorArg = TensorArg(0)
    softmax_scale: float | None = None
    diagonal: int | None = None


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
        """The compile-time facts of a workload, as text.  `lse`: with the log-sum-exp, whatever
        the workload says."""

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
        """Grid, block and shared memory of a launch; raises InvalidConfig for a workload that
        no grid covers."""

    def kernel_args(self, config: Any, workload: Workload, args: LaunchArgs) -> list[np.ndarray]:
        """The kernel's parameters, each a NumPy array of one element passed by value."""

    def blocks(self, config: Any) -> tuple[int, int]:
        """(query rows, key rows) of a tile, for the FLOP model."""
