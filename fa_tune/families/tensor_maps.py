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
from fa_tune.families.base import TensorArg

if TYPE_CHECKING:
    import numpy as np

MAP_BYTES = 128
MAP_ALIGNMENT = 64  # of the memory the driver writes a map to
PANEL_COLUMNS = 64  # 128 bytes, the widest box that 128-byte swizzle allows
STRIDE_BYTES = 16  # every stride and the address must be a multiple

_DATA_TYPES = {DType.FP16: 6, DType.BF16: 9}
_INTERLEAVE_NONE, _SWIZZLE_128B, _L2_PROMOTION_128B, _FILL_ZEROS = 0, 3, 2, 0


def tensor_map(
    tensor: TensorArg, workload: Workload, *, queries: bool, box_rows: int, values: bool = False
) -> np.ndarray:
    """The map of one whole tensor, dimensions (head dimension, sequence, heads, batch), innermost
    first, with boxes of 64 columns by `box_rows` rows of one head.

    `queries`: the tensor has the workload's query heads and length, not those of K and V.
    `values`: the head dimension of V and O, not that of Q and K.
    Returns an array of one 128-byte element.  Maps are kept: a launch with the same tensors
    makes none.  Raises InvalidConfig for an address or stride that is no multiple of 16 bytes,
    ToolMissing without a driver.
    """
    rows, heads = (
        (workload.seq_len_q, workload.heads)
        if queries
        else (workload.seq_len_kv, workload.kv_heads)
    )
    return _encoded(
        tensor.address,
        tensor.strides,
        (workload.d_v if values else workload.d_head, rows, heads, workload.batch),
        workload.dtype,
        box_rows,
    )


@lru_cache(maxsize=1024)
def _encoded(
    address: int,
    strides: tuple[int, int, int],
    dimensions: tuple[int, int, int, int],
    dtype: DType,
    box_rows: int,
) -> np.ndarray:
    import numpy as np  # only a launch needs it; commands that never launch start faster

    batch_stride, row_stride, head_stride = (s * dtype.size_bytes for s in strides)
    stride_bytes = [row_stride, head_stride, batch_stride]
    for i, length in enumerate(dimensions[1:]):
        if length == 1:  # never stepped along, and so free; the driver still wants a legal one
            stride_bytes[i] = STRIDE_BYTES
    if address % STRIDE_BYTES or any(s % STRIDE_BYTES for s in stride_bytes):
        raise InvalidConfig(
            "bulk tensor copies need an address and strides that are multiples of 16 bytes "
            f"(8 elements); strides of (batch, seq, head) are {strides}"
        )
    memory = np.zeros(MAP_BYTES + MAP_ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % MAP_ALIGNMENT
    aligned = memory[start : start + MAP_BYTES]
    status = _driver().cuTensorMapEncodeTiled(
        ctypes.c_void_p(aligned.ctypes.data),
        _DATA_TYPES[dtype],
        len(dimensions),
        ctypes.c_void_p(address),
        (ctypes.c_uint64 * 4)(*dimensions),
        (ctypes.c_uint64 * 3)(*stride_bytes),
        (ctypes.c_uint32 * 4)(PANEL_COLUMNS, box_rows, 1, 1),
        (ctypes.c_uint32 * 4)(1, 1, 1, 1),
        _INTERLEAVE_NONE,
        _SWIZZLE_128B,
        _L2_PROMOTION_128B,
        _FILL_ZEROS,
    )
    if status != 0:
        raise InvalidConfig(
            f"the driver made no tensor map (error {status}) of dimensions {dimensions} with "
            f"strides of {stride_bytes} bytes and boxes of {box_rows} rows"
        )
    # A copy of its own: a view would keep the larger array, and its alignment is not needed.
    return aligned.view(f"V{MAP_BYTES}").copy()


@lru_cache(maxsize=1)
def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise ToolMissing("no CUDA driver found: libcuda.so.1 cannot be loaded") from None
