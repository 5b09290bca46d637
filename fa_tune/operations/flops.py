"""How much work a workload is, whichever operation it is of: three counts and the bytes.

`matmul_flop` is what the literature quotes (4·s²·d; causal counts unmasked pairs only),
`attn_flop` adds six operations per score for the softmax, `total_flop` counts what a tiled
kernel does, with its per-tile softmax bookkeeping and the epilogue.
"""

from __future__ import annotations

from fa_tune import operations
from fa_tune.core.workload import Workload
from fa_tune.operations.base import TensorSpec


def matmul_flop(workload: Workload) -> int:
    """Operations of the matrix products."""
    return operations.get(workload.op).matmul_flop(workload)


def attn_flop(workload: Workload) -> int:
    """The same with the softmax."""
    return operations.get(workload.op).attn_flop(workload)


def total_flop(workload: Workload, B_r: int, B_c: int) -> int:
    """All that a tiled kernel does.  Raises InvalidConfig when a block does not divide its
    sequence: the model counts whole tiles only."""
    return operations.get(workload.op).total_flop(workload, B_r, B_c)


def input_bytes(workload: Workload) -> int:
    """Bytes of all tensors that are read."""
    return sum(tensor.size_bytes for tensor in _tensors(workload) if not tensor.output)


def read_bytes(workload: Workload) -> int:
    """Bytes of these that some query needs."""
    return sum(t.size_bytes - t.unread_bytes for t in _tensors(workload) if not t.output)


def moved_bytes(workload: Workload) -> int:
    """Bytes between memory and the chip if everything that is needed crosses once: the least there
    is."""
    return sum(tensor.size_bytes - tensor.unread_bytes for tensor in _tensors(workload))


def _tensors(workload: Workload) -> tuple[TensorSpec, ...]:
    return operations.get(workload.op).tensors(workload)


def tflops(flop: int, duration_s: float) -> float:
    """TFLOP/s of `flop` operations in `duration_s` seconds."""
    return flop / duration_s / 1e12
