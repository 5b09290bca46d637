"""The time that memory alone takes: a kernel that reads K and V once and does nothing with them."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from fa_tune.core.model import BARE_READ, BARE_READ_LABEL
from fa_tune.core.streams import stream_of
from fa_tune.core.workload import FORWARD, Workload
from fa_tune.libraries.base import ANY, Library
from fa_tune.operations.base import Launch, Problem
from fa_tune.operations.forward.spec import keys_seen

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


def rows_read(workload: Workload) -> int:
    """Rows of K, and of V, that some query sees."""
    return keys_seen(workload) * workload.kv_heads


def forward(problem: Problem) -> Launch:
    """A launch that reads as many rows of K and V as some query sees, from their beginnings; each
    thread has eight loads of 16 bytes under way."""
    import torch

    rows = rows_read(problem.workload)
    first, second = problem.inputs["k"], problem.inputs["v"]
    counts = [rows * t.shape[-1] * t.element_size() // LOAD_BYTES for t in (first, second)]
    kernel = _kernel()
    multiprocessors = torch.cuda.get_device_properties(first.device).multi_processor_count
    grid = max(1, min(CTAS_PER_SM * multiprocessors, -(-sum(counts) // THREADS)))
    never = torch.empty(1, dtype=torch.int32, device=first.device)

    def launch() -> None:
        pointers = (first.data_ptr(), counts[0], second.data_ptr(), counts[1], never.data_ptr())
        with stream_of(torch.cuda.current_stream().cuda_stream):
            kernel((grid,), (THREADS,), pointers)

    return launch


@cache
def _kernel() -> Any:
    import cupy

    return cupy.RawKernel(_SOURCE, "bare_read")


LIBRARY = Library(
    name=BARE_READ,
    label=BARE_READ_LABEL,
    full_name="The bare read",
    packages=(),
    kernel_names=re.compile(r"^bare_read$"),
    known=ANY,
    calls={FORWARD: forward},
    place=5,
)
