"""Tensor maps: what a bulk tensor copy (TMA) must know of a tensor, made on the host.

CUDA driver API, `cuTensorMapEncodeTiled`.  It needs the driver's library but neither a device
nor a context; a map is 128 bytes, passed to a kernel by value.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import TYPE_CHECKING

from fa_tune.core.errors import InvalidConfig, ToolMissing
from fa_tune.core.workload import DType, Workload
from fa_tune.families.launch import TensorArg

if TYPE_CHECKING:
    import numpy as np

MAP_BYTES = 128
MAP_ALIGNMENT = 64  # of the memory the driver writes a map to
PANEL_COLUMNS = 64  # 128 bytes, the widest box that 128-byte swizzle allows
STRIDE_BYTES = 16  # every stride and the address must be a multiple
FAR_ROWS = 2**30  # kernels/common/sequence.cuh, kFar

_DATA_TYPES = {DType.FP16: 6, DType.BF16: 9}
_INTERLEAVE_NONE, _SWIZZLE_128B, _L2_PROMOTION_128B, _FILL_ZEROS = 0, 3, 2, 0


def tensor_map(
    tensor: TensorArg, workload: Workload, *, queries: bool, box_rows: int, values: bool = False
) -> np.ndarray:
    """The map of one whole tensor, dimensions (head dimension, sequence, heads, batch), innermost
    first, with boxes of 64 columns by `box_rows` rows of one head.

    `queries`: the tensor has the workload's query heads and length, not those of K and V.
    `values`: the head dimension of V and O, not that of Q and K.
    That of a packed tensor is of five dimensions, see kernels/common/sequence.cuh.

    Returns an array of one 128-byte element.  Maps are kept: a launch with the same tensors
    makes none.  Raises InvalidConfig for an address or stride that is no multiple of 16 bytes,
    ToolMissing without a driver.
    """
    rows, heads = (
        (workload.seq_len_q, workload.heads)
        if queries
        else (workload.seq_len_kv, workload.kv_heads)
    )
    batch_stride, row_stride, head_stride = (s * workload.dtype.size_bytes for s in tensor.strides)
    columns = workload.d_v if values else workload.d_head
    if workload.packed:
        rows = workload.rows[1 if queries else 2]
        if rows == 1:  # a stride that is never stepped along
            row_stride = STRIDE_BYTES
        dimensions: tuple[int, ...] = (columns, FAR_ROWS, heads, FAR_ROWS + 1, rows + 1)
        strides: tuple[int, ...] = (
            *(row_stride, head_stride if heads > 1 else STRIDE_BYTES),
            *(2**64 // FAR_ROWS - row_stride, row_stride),
        )
    else:
        dimensions = (columns, rows, heads, workload.batch)
        # What is never stepped along is free; the driver still wants a legal stride.
        strides = tuple(
            stride if length > 1 else STRIDE_BYTES
            for stride, length in zip(
                (row_stride, head_stride, batch_stride), dimensions[1:], strict=True
            )
        )
    if tensor.address % STRIDE_BYTES or any(s % STRIDE_BYTES for s in strides):
        raise InvalidConfig(
            "bulk tensor copies need an address and strides that are multiples of 16 bytes "
            f"(8 elements); strides of (batch, seq, head) are {tensor.strides}"
        )
    return _encoded(tensor.address, strides, dimensions, workload.dtype, box_rows)


@lru_cache(maxsize=1024)
def _encoded(
    address: int,
    strides: tuple[int, ...],
    dimensions: tuple[int, ...],
    dtype: DType,
    box_rows: int,
) -> np.ndarray:
    """Strides in bytes, of all dimensions but the innermost."""
    import numpy as np  # only a launch needs it; commands that never launch start faster

    memory = np.zeros(MAP_BYTES + MAP_ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % MAP_ALIGNMENT
    aligned = memory[start : start + MAP_BYTES]
    rank = len(dimensions)
    status = _driver().cuTensorMapEncodeTiled(
        ctypes.c_void_p(aligned.ctypes.data),
        _DATA_TYPES[dtype],
        rank,
        ctypes.c_void_p(address),
        (ctypes.c_uint64 * rank)(*dimensions),
        (ctypes.c_uint64 * (rank - 1))(*strides),
        (ctypes.c_uint32 * rank)(PANEL_COLUMNS, box_rows, *[1] * (rank - 2)),
        (ctypes.c_uint32 * rank)(*[1] * rank),
        _INTERLEAVE_NONE,
        _SWIZZLE_128B,
        _L2_PROMOTION_128B,
        _FILL_ZEROS,
    )
    if status != 0:
        raise InvalidConfig(
            f"the driver made no tensor map (error {status}) of dimensions {dimensions} with "
            f"strides of {list(strides)} bytes and boxes of {box_rows} rows"
        )
    # A copy of its own: a view would keep the larger array, and its alignment is not needed.
    return aligned.view(f"V{MAP_BYTES}").copy()


@lru_cache(maxsize=1)
def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise ToolMissing("no CUDA driver found: libcuda.so.1 cannot be loaded") from None
