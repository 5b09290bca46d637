"""`families.base.KernelFamily` of `sm80`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fa_tune.core.workload import FORWARD, DType, Workload
from fa_tune.families import computed
from fa_tune.families.plan import CallPlan, Grid, LaunchPlan
from fa_tune.families.sm80.config import FlashForwardKernelConfig, sized_as
from fa_tune.families.sm80.constraints import constraints
from fa_tune.families.sm80.names import parse_kernel_name_into_config
from fa_tune.families.sm80.rules import autotune_rejection
from fa_tune.families.sm80.sets import ALLOWED_KEYS, get_kernel_configs
from fa_tune.families.template import TemplateFamily
from fa_tune.operations.forward.cases import example
from fa_tune.operations.traits import Traits

COUNTER_BYTES = 8  # of the tiles' counters

# The struct in a kernel's name, or a tuple that no word stands before: `sm90(FP16, …)` is of
# another family.
_LOOKS_LIKE = re.compile(r"FlashForwardKernelConfig|(?<![\w+)>])\(\s*\w+\s*,")


class Sm80Family(TemplateFamily[FlashForwardKernelConfig]):
    """mma.sync, for compute capability 8.0 and later."""

    operation = FORWARD
    name = "sm80"
    entry = "sm80/fwd/entry.cu"
    config_class = FlashForwardKernelConfig
    example = "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax"
    computes = computed.SCORES | computed.PLACED_SCORES | computed.PACKED
    set_keys = ALLOWED_KEYS
    outrun_by = "sm90"  # 1.4 times and more, in all recordings that have both

    parse = staticmethod(parse_kernel_name_into_config)
    configs = staticmethod(get_kernel_configs)
    tune_rejection = staticmethod(autotune_rejection)
    constraints = staticmethod(constraints)

    def recognises(self, text: str) -> bool:
        return _LOOKS_LIKE.search(text) is not None

    def default_config(
        self, d_head: int, dtype: DType, *, d_head_v: int = 0
    ) -> FlashForwardKernelConfig:
        """What runs on every device of the family and was fastest, or near it, of all that do
        at every length on an H200: 32 rows per warp while O fits the registers, else 16."""
        size = sized_as(d_head, d_head_v)
        load_tiles = (1, 1, 1) if size <= 64 or d_head % 32 else (2, 2, 2)
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

    def plan(self, config: FlashForwardKernelConfig, traits: str, arch: str) -> CallPlan:
        ping_pong = config.ping_pong
        launch = LaunchPlan(
            params="sm80_forward",
            grid=Grid.PERSISTENT if ping_pong else Grid.BLOCKS_HEADS_BATCH,
            tile_rows=config.B_r,
            ctas_per_sm=1,
            threads=config.threads,
            dynamic_smem_bytes=config.smem_bytes,
            q_box_rows=config.B_r // config.n_warps if ping_pong else 0,
            kv_box_rows=config.B_c if ping_pong else 0,
            counter_bytes=COUNTER_BYTES if ping_pong else 0,
        )
        return CallPlan.of(self.operation, config, traits, arch, (launch,))

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
