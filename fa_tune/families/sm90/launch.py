"""What a launch of the `sm90` family passes: its grid, its parameters and its tensor maps."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import FORWARD, Workload
from fa_tune.families.launch import LaunchArgs, LaunchDevice, LaunchGeometry
from fa_tune.families.plan import CallPlan, Grid, LaunchPlan
from fa_tune.families.score_params import score_dtype, set_scores
from fa_tune.families.sm90.config import GROUP_ROWS, Scheduler, Sm90Config
from fa_tune.families.tensor_maps import tensor_map
from fa_tune.families.work_tiles import (
    L2_SHARE,
    MAX_TILES,
    PACKED_FIELDS,
    l2_head_group,
    set_packed,
    tiles_of_head,
)

if TYPE_CHECKING:
    import numpy as np


# Copies of Q and O end where the rows do, and the log-sum-exp is asked for every row: any number of
# queries is a whole one.
WHOLE_QUERIES = 1
ROOMY_D_HEAD = 128  # up to which the heads at work may have all of L2


@cache
def params_dtype() -> np.dtype:
    """kernels/sm90/fwd/params.cuh, ForwardParams, field for field."""
    import numpy as np  # only a launch needs it; commands that never launch start faster

    numbers = (
        *("heads", "heads_per_kv", "seq_len_q", "seq_len_kv", "diagonal"),
        *("m_blocks", "total_heads", "l2_head_group"),
    )
    return np.dtype(
        [("lse", "u8"), ("counters", "u8")]
        + [(name, "i4") for name in numbers]
        + [("softmax_scale", "f4"), ("score", score_dtype())]
        + [("packed", np.dtype(list(PACKED_FIELDS), align=True))],
        align=True,
    )


def geometry(config: Sm90Config, workload: Workload, device: LaunchDevice) -> LaunchGeometry:
    """A CTA per tile, or with a persistent scheduler as many as the multiprocessors hold at most;
    raises InvalidConfig for more tiles than the kernel counts."""
    tiles = tiles_of_head(workload, config.B_r) * workload.heads * workload.rows[0]
    if tiles > MAX_TILES:
        raise InvalidConfig(f"{workload.key} has {tiles} tiles; a launch takes {MAX_TILES}")
    resident = max(1, device.multiprocessors * config.min_ctas_per_sm)
    ctas = min(tiles, resident) if config.persistent else tiles
    return LaunchGeometry((ctas, 1, 1), (config.threads, 1, 1), config.smem_bytes)


def counter_bytes(config: Sm90Config) -> int:
    """Of the dynamic scheduler: common/problem.cuh, SchedulerCounters."""
    return 8 if config.scheduler is Scheduler.DYNAMIC else 0


def plan(config: Sm90Config, traits: str, arch: str) -> CallPlan:
    """The same launch for C++."""
    launch = LaunchPlan(
        params="sm90_forward",
        grid=Grid.PERSISTENT if config.persistent else Grid.TILES,
        tile_rows=config.B_r,
        ctas_per_sm=config.min_ctas_per_sm,
        threads=config.threads,
        dynamic_smem_bytes=config.smem_bytes,
        cluster_x=1,
        cluster_y=1,
        cluster_z=1,
        q_box_rows=GROUP_ROWS,
        kv_box_rows=config.B_c,
        counter_bytes=counter_bytes(config),
    )
    return CallPlan.of(FORWARD, config, traits, arch, (launch,), block_q=WHOLE_QUERIES)


def _l2_share(workload: Workload) -> float:
    """The part of L2 for the heads at work.  More heads are more tiles of unequal length, which
    end together; with large heads, the copies that miss L2 cost as much as that gains."""
    large = max(workload.d_head, workload.d_v) > ROOMY_D_HEAD
    return L2_SHARE if large or workload.packed else 1.0


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
    batch, params["seq_len_q"], params["seq_len_kv"] = workload.rows
    params["m_blocks"] = tiles_of_head(workload, config.B_r)
    params["total_heads"] = workload.heads * batch
    params["l2_head_group"] = l2_head_group(workload, device.l2_bytes, _l2_share(workload))
    set_scores(params, workload, args)
    set_packed(params, workload, args)
    return [
        tensor_map(args.q, workload, queries=True, box_rows=GROUP_ROWS),
        tensor_map(args.k, workload, queries=False, box_rows=config.B_c),
        tensor_map(args.v, workload, queries=False, box_rows=config.B_c, values=True),
        tensor_map(args.o, workload, queries=True, box_rows=GROUP_ROWS, values=True),
        params,
    ]
