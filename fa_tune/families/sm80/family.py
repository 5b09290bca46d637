"""The family's side of `families.base.KernelFamily` for `sm80`: how its configs are named,
compiled and launched.  The config itself and its constraints are in `sm80`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from fa_tune.core.arch import ArchLimits
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.model import Rejected
from fa_tune.core.workload import FORWARD, DType, Workload
from fa_tune.families import computed
from fa_tune.families.launch import LaunchArgs, LaunchDevice, LaunchGeometry, TensorArg
from fa_tune.families.plan import CallPlan, Grid, LaunchPlan
from fa_tune.families.score_params import score_dtype, set_scores
from fa_tune.families.sm80.config import FlashForwardKernelConfig, sized_as
from fa_tune.families.sm80.constraints import constraints
from fa_tune.families.sm80.names import parse_kernel_name_into_config
from fa_tune.families.sm80.rules import autotune_rejection
from fa_tune.families.sm80.sets import ALLOWED_KEYS, get_kernel_configs
from fa_tune.families.template import TemplateFamily
from fa_tune.families.tensor_maps import tensor_map
from fa_tune.families.work_tiles import (
    MAX_TILES,
    PACKED_FIELDS,
    l2_head_group,
    list_bytes,
    set_packed,
    tiles_of_head,
)
from fa_tune.operations.forward.cases import example
from fa_tune.operations.traits import Traits

if TYPE_CHECKING:
    import numpy as np

COUNTER_BYTES = 8  # of the tiles' counters
MAX_GRID_ROWS = 65535  # of a grid's second and third dimension, heads and batch

# The struct in a kernel's name, or a tuple that no word stands before: `sm90(FP16, …)` is of
# another family.
_LOOKS_LIKE = re.compile(r"FlashForwardKernelConfig|(?<![\w+)>])\(\s*\w+\s*,")


@cache
def params_dtype() -> np.dtype:
    """kernels/sm80/params.cuh, ForwardParams, field for field."""
    import numpy as np  # only a launch needs it; commands that never launch start faster

    strides = np.dtype([("batch", "i8"), ("seq", "i8"), ("head", "i8")], align=True)
    return np.dtype(
        [(f"{t}_address", "u8") for t in ("q", "k", "v", "o", "lse", "counters")]
        + [(f"{t}_strides", strides) for t in ("q", "k", "v", "o")]
        + [(n, "i4") for n in ("heads", "heads_per_kv", "seq_len_q", "seq_len_kv", "diagonal")]
        + [("batch", "i4"), ("l2_head_group", "i4")]
        + [("softmax_scale", "f4"), ("score", score_dtype())]
        + [("packed", np.dtype(list(PACKED_FIELDS), align=True))],
        align=True,
    )


class Sm80Family(TemplateFamily[FlashForwardKernelConfig]):
    """The family's side of `families.base.KernelFamily`."""

    operation = FORWARD
    name = "sm80"
    looks_like = _LOOKS_LIKE
    entry = "sm80/fwd/entry.cu"
    config_class = FlashForwardKernelConfig
    example = "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax"
    computes = computed.SCORES | computed.PLACED_SCORES | computed.PACKED
    set_keys = ALLOWED_KEYS

    def parse(self, text: str, *, d_head: int = 128) -> FlashForwardKernelConfig:
        return parse_kernel_name_into_config(text, d_head=d_head)

    def configs(
        self,
        key: str,
        *,
        dtypes: Sequence[DType] | None = None,
        d_head: int = 128,
        d_head_v: int = 0,
    ) -> list[FlashForwardKernelConfig]:
        return get_kernel_configs(key, dtypes=dtypes, d_head=d_head, d_head_v=d_head_v)

    def tune_rejection(self, config: FlashForwardKernelConfig) -> Rejected | None:
        return autotune_rejection(config)

    def constraints(self, config: FlashForwardKernelConfig, limits: ArchLimits) -> Rejected | None:
        return constraints(config, limits)

    def default_config(
        self, d_head: int, dtype: DType, *, d_head_v: int = 0
    ) -> FlashForwardKernelConfig:
        """What runs on every device of the family and was fastest, or near it, of all that do
        at every length on an H200: 32 rows per warp while O fits the registers, else 16."""
        size = sized_as(d_head, d_head_v)
        load_tiles = (1, 1, 1) if size <= 64 else (2, 2, 2)
        blocks = (128, 128, 4) if size <= 64 else (128, 64, 4) if size <= 128 else (64, 64, 4)
        return FlashForwardKernelConfig(
            dtype,
            d_head,
            *blocks,
            *(True, True, True),
            *load_tiles,
            False,
            True,
            rescale_threshold=8,
            interleaved_softmax=True,
            d_head_v=d_head_v,
        )

    def geometry(
        self, config: FlashForwardKernelConfig, workload: Workload, device: LaunchDevice
    ) -> LaunchGeometry:
        query_blocks, batch = tiles_of_head(workload, config.B_r), workload.rows[0]
        if config.ping_pong:
            tiles = query_blocks * workload.heads * batch
            if tiles > MAX_TILES:
                raise InvalidConfig(f"{workload.key} has {tiles} tiles; a launch takes {MAX_TILES}")
            grid = (min(tiles, device.multiprocessors), 1, 1)
        else:
            for name, size in (("heads", workload.heads), ("batch", batch)):
                if size > MAX_GRID_ROWS:
                    raise InvalidConfig(f"{name} must be at most {MAX_GRID_ROWS}, not {size}")
            grid = (query_blocks, workload.heads, batch)
        return LaunchGeometry(
            grid=grid,
            block=(config.threads, 1, 1),
            dynamic_smem_bytes=config.smem_bytes,
        )

    def plan(self, config: FlashForwardKernelConfig, traits: str, arch: str) -> CallPlan:
        ping_pong = config.ping_pong
        launch = LaunchPlan(
            params="sm80_forward",
            grid=Grid.PERSISTENT if ping_pong else Grid.BLOCKS_HEADS_BATCH,
            tile_rows=config.B_r,
            ctas_per_sm=1,
            threads=config.threads,
            dynamic_smem_bytes=config.smem_bytes,
            cluster_x=1,
            cluster_y=1,
            cluster_z=1,
            q_box_rows=config.B_r // config.n_warps if ping_pong else 0,
            kv_box_rows=config.B_c if ping_pong else 0,
            counter_bytes=self.scratch_bytes(config),
        )
        return CallPlan.of(self.operation, config, traits, arch, (launch,))

    def workspace_bytes(
        self, config: FlashForwardKernelConfig, workload: Workload, device: LaunchDevice
    ) -> int:
        return list_bytes(workload) if config.ping_pong else 0

    def scratch_bytes(self, config: FlashForwardKernelConfig) -> int:
        return COUNTER_BYTES if config.ping_pong else 0

    def kernel_args(
        self,
        config: FlashForwardKernelConfig,
        workload: Workload,
        args: LaunchArgs,
        device: LaunchDevice,
    ) -> list[np.ndarray]:
        import numpy as np

        params = np.zeros(1, params_dtype())
        tensors: Mapping[str, TensorArg] = {"q": args.q, "k": args.k, "v": args.v, "o": args.o}
        for name, tensor in tensors.items():
            params[f"{name}_address"] = tensor.address
            params[f"{name}_strides"] = tensor.strides
        params["lse_address"] = args.lse.address
        params["counters_address"] = args.scratch
        params["heads"] = workload.heads
        params["heads_per_kv"] = workload.heads // workload.kv_heads
        params["batch"], params["seq_len_q"], params["seq_len_kv"] = workload.rows
        set_scores(params, workload, args)
        set_packed(params, workload, args)
        if not config.ping_pong:
            return [params]
        params["l2_head_group"] = l2_head_group(workload, device.l2_bytes)
        warp_rows = config.B_r // config.n_warps
        return [
            tensor_map(args.q, workload, queries=True, box_rows=warp_rows),
            tensor_map(args.k, workload, queries=False, box_rows=config.B_c),
            tensor_map(args.v, workload, queries=False, box_rows=config.B_c, values=True),
            tensor_map(args.o, workload, queries=True, box_rows=warp_rows, values=True),
            params,
        ]

    def extra_verification(
        self, config: FlashForwardKernelConfig, traits: str
    ) -> Sequence[Workload]:
        """With turns, more tiles than multiprocessors, so that CTAs take several; of unequal
        length with a mask, and few blocks each, so that rings turn at every point."""
        if not config.ping_pong:
            return ()
        wanted = Traits.parse(traits)
        rest = 17 if wanted.ragged else 0
        rows, keys = 2 * config.B_r + rest, 3 * config.B_c + rest
        shape = (11, 15, 5, rows, keys, config.d_head, config.dtype)
        heads = {"d_head_v": config.d_head_v}
        return (example(wanted, shape, 0, bottom_right=False, **heads),)
