"""The order of work tiles, as both families' launches compute it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fa_tune.core.workload import Workload

if TYPE_CHECKING:
    import numpy as np

    from fa_tune.families.launch import LaunchArgs

MAX_TILES = 2**30  # a kernel counts them in 32 bits, and a little beyond the last one
# The part of L2 that the keys and values of the heads at work should fit in.
L2_SHARE = 0.5
MAX_GROUPED_HEADS = 64


def l2_head_group(workload: Workload, l2_bytes: int, share: float = L2_SHARE) -> int:
    """Neighbouring query heads, a power of two, whose keys and values fit in their share of
    L2 together."""
    columns = workload.d_head + workload.d_v
    of_kv_head = workload.seq_len_kv * columns * workload.dtype.size_bytes
    of_head = of_kv_head * workload.kv_heads / workload.heads
    heads = 1
    while heads < MAX_GROUPED_HEADS and 2 * heads * of_head <= share * l2_bytes:
        heads *= 2
    return heads


MEMBER_BYTES = 32  # kernels/common/packed_batch.cuh, PackedMember


def tiles_of_head(workload: Workload, tile_rows: int) -> int:
    """Blocks of query rows of one head and batch element; of a packed batch as many as there can
    be of one head, whatever the lengths."""
    if workload.packed:
        return (workload.total_q + workload.batch * (tile_rows - 1)) // tile_rows
    return -(-workload.seq_len_q // tile_rows)


def list_bytes(workload: Workload) -> int:
    """Of the list of a packed batch's sequences in the order of work, and its end."""
    return MEMBER_BYTES * (workload.batch + 1) if workload.packed else 0


def set_packed(params: np.ndarray, workload: Workload, args: LaunchArgs) -> None:
    """Fill in `PACKED_FIELDS` of a launch."""
    if not workload.packed:
        return
    packed = params["packed"]
    for name in ("cu_seqlens_q", "cu_seqlens_kv", "used_q", "used_kv"):
        packed[name] = args[name].address
    packed["members"] = args.workspace
    packed["batch"] = workload.batch


# kernels/common/packed_batch.cuh, PackedBatch, field for field.
PACKED_FIELDS = (
    ("batch", "i4"),
    ("unused", "i4"),
    *((name, "u8") for name in ("cu_seqlens_q", "cu_seqlens_kv", "used_q", "used_kv", "members")),
)
