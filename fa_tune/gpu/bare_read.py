"""The time that memory alone takes: a kernel that reads the inputs once and does nothing with them.

Imported by workers only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import cupy
import torch

from fa_tune.core.streams import stream_of

THREADS = 512
CTAS_PER_SM = 4
LOAD_BYTES = 16

_SOURCE = r"""
extern "C" __global__ void __launch_bounds__(512) bare_read(
    const uint4* first, long long first_n, const uint4* second, long long second_n,
    unsigned* never) {
    unsigned found = 0;
    const long long step = (long long)gridDim.x * blockDim.x;
    const long long n = first_n + second_n;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += 8 * step) {
        uint4 loaded[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const long long at = i + j * step;
            const uint4* from = at < first_n ? first + at : second + (at - first_n);
            loaded[j] = at < n ? __ldcs(from) : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int j = 0; j < 8; ++j)
            found |= loaded[j].x & loaded[j].y & loaded[j].z & loaded[j].w;
    }
    // The loads must have an effect; no element has all of its bits set in every such place.
    if (found == 0x12345678u) *never = found;
}
"""


def bare_read(tensors: Sequence[torch.Tensor], rows: int) -> Callable[[], None]:
    """A call that enqueues one launch on torch's current stream, which reads so many rows, each a
    last dimension, of two contiguous tensors, from their beginnings; each thread has eight loads
    of 16 bytes under way."""
    first, second = tensors
    counts = [rows * t.shape[-1] * t.element_size() // LOAD_BYTES for t in (first, second)]
    kernel, multiprocessors = _kernel(), _multiprocessors(cupy.cuda.Device().id)
    grid = max(1, min(CTAS_PER_SM * multiprocessors, -(-sum(counts) // THREADS)))
    never = torch.empty(1, dtype=torch.int32, device=first.device)

    def call() -> None:
        with stream_of(torch.cuda.current_stream().cuda_stream):
            kernel(
                (grid,),
                (THREADS,),
                (
                    *(first.data_ptr(), counts[0], second.data_ptr(), counts[1]),
                    never.data_ptr(),
                ),
            )

    return call


@cache
def _kernel() -> Any:
    return cupy.RawKernel(_SOURCE, "bare_read")


@cache
def _multiprocessors(index: int) -> int:
    return int(cupy.cuda.Device(index).attributes["MultiProcessorCount"])
