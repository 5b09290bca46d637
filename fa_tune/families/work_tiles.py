"""The order of work tiles, as both families' launches compute it."""

from __future__ import annotations

from fa_tune.core.workload import Workload

MAX_TILES = 2**30  # a kernel counts them in 32 bits, and a little beyond the last one
# The part of L2 that the keys and values of the heads at work should fit in.
L2_SHARE = 0.5
MAX_GROUPED_HEADS = 64


def l2_head_group(workload: Workload, l2_bytes: int) -> int:
    """Neighbouring query heads, a power of two, whose keys and values fit in their share of
    L2 together."""
    columns = workload.d_head + workload.d_v
    of_kv_head = workload.seq_len_kv * columns * workload.dtype.size_bytes
    of_head = of_kv_head * workload.kv_heads / workload.heads
    heads = 1
    while heads < MAX_GROUPED_HEADS and 2 * heads * of_head <= L2_SHARE * l2_bytes:
        heads *= 2
    return heads
