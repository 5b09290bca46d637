"""What a launch of the `sm90` family passes: its grid, its parameters and its tensor maps."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.model import Workload
from fa_tune.families.base import LaunchArgs, LaunchDevice, LaunchGeometry
from fa_tune.families.sm90.config import GROUP_ROWS, Order, Sm90Config
from fa_tune.families.tensor_maps import tensor_map
from fa_tune.families.work_tiles import MOST_TILES, section_heads

if TYPE_CHECKING:
    import numpy as np


@cache
def params_dtype() -> np.dtype:
    """kernels/sm90/params.cuh, ForwardParams, field for field."""
    import numpy as np  # only a launch needs it; commands that never launch start faster

    numbers = (
        *("heads", "heads_per_kv", "seq_len_q", "seq_len_kv", "diagonal"),
        *("row_blocks", "heads_in_all", "section_heads"),
    )
    return np.dtype(
        [("lse", "u8"), ("counters", "u8")]
        + [(name, "i4") for name in numbers]
        + [("softmax_scale", "f4")],
        align=True,
    )


def row_blocks_of_cluster(config: Sm90Config, workload: Workload) -> int:
    """Tiles of one head, each of the rows of all CTAs of a cluster; of an odd number of row
    blocks the last tile has rows that do not exist, which are computed and never written."""
    return -(-workload.seq_len_q // (config.B_r * config.cluster))


def geometry(config: Sm90Config, workload: Workload, device: LaunchDevice) -> LaunchGeometry:
    """A cluster of CTAs per tile of them all, or with a persistent scheduler as many as the
    multiprocessors hold at most; raises InvalidConfig for more tiles than the kernel counts."""
    row_blocks = row_blocks_of_cluster(config, workload)
    per_head = -(-row_blocks // 2) if config.order is Order.PAIRED else row_blocks
    tiles = per_head * workload.heads * workload.batch
    if tiles * config.cluster > MOST_TILES:
        raise InvalidConfig(f"{workload.key} has {tiles} tiles; a launch takes {MOST_TILES}")
    resident = max(1, device.multiprocessors * config.ctas // config.cluster)
    clusters = min(tiles, resident) if config.persistent else tiles
    return LaunchGeometry(
        (clusters * config.cluster, 1, 1), (config.threads, 1, 1), config.smem_bytes
    )


def kernel_args(
    config: Sm90Config, workload: Workload, args: LaunchArgs, device: LaunchDevice
) -> list[np.ndarray]:
    """The tensor maps of Q, K, V and O, and the struct of numbers."""
    import numpy as np

    params = np.zeros(1, params_dtype())
    params["lse"] = args.lse.address
    params["counters"] = args.scratch
    params["heads"] = workload.heads
    params["heads_per_kv"] = workload.heads // workload.kv_heads
    params["seq_len_q"] = workload.seq_len_q
    params["seq_len_kv"] = workload.seq_len_kv
    params["row_blocks"] = row_blocks_of_cluster(config, workload)
    params["heads_in_all"] = workload.heads * workload.batch
    params["section_heads"] = section_heads(workload, device.l2_bytes)
    params["diagonal"], params["softmax_scale"] = args.checked(workload)
    kv_rows = config.B_c // config.cluster  # every CTA of a cluster loads its share for all
    return [
        tensor_map(args.q, workload, queries=True, box_rows=GROUP_ROWS),
        tensor_map(args.k, workload, queries=False, box_rows=kv_rows),
        tensor_map(args.v, workload, queries=False, box_rows=kv_rows),
        tensor_map(args.o, workload, queries=True, box_rows=GROUP_ROWS),
        params,
    ]
