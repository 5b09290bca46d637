"""`families.base.KernelFamily` of `sm90`."""

from __future__ import annotations

from collections.abc import Sequence

from fa_tune.core.arch import ArchLimits
from fa_tune.core.arch import limits as arch_limits
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import FORWARD, Workload
from fa_tune.families import computed
from fa_tune.families.plan import CallPlan, Grid, LaunchPlan
from fa_tune.families.sm90 import constraints as rules
from fa_tune.families.sm90 import defaults, few_tiles, names, sets
from fa_tune.families.sm90.config import GROUP_ROWS, Scheduler, Sm90Config
from fa_tune.families.template import TemplateFamily
from fa_tune.operations.forward.cases import example
from fa_tune.operations.traits import Traits

HOPPER = arch_limits((9, 0))
COUNTER_BYTES = 8  # of the dynamic scheduler: kernels/common/problem.cuh, SchedulerCounters
# Copies of Q and O end where the rows do, and the log-sum-exp is wanted for every row: any number
# of queries is a whole one.
WHOLE_QUERIES = 1


class Sm90Family(TemplateFamily[Sm90Config]):
    """wgmma and TMA, for compute capability 9.0."""

    operation = FORWARD
    name = "sm90"
    entry = "sm90/fwd/entry.cu"
    config_class = Sm90Config
    example = "sm90(FP16, 128, 128x128): stages_2+q_stages_2+pingpong+overlap+stale_max+dynamic"
    computes = computed.SCORES | computed.PLACED_SCORES | computed.PACKED
    set_keys = "fast, tune, all or prog"

    parse = staticmethod(names.parse)
    configs = staticmethod(sets.get_configs)
    tune_rejection = staticmethod(sets.tune_rejection)
    constraints = staticmethod(rules.constraints)
    default_config = staticmethod(defaults.default_config)

    def compile_arch(self, limits: ArchLimits) -> str:
        return f"{limits.arch}a"

    def suits(self, workload: Workload, config: Sm90Config | None = None) -> bool:
        """Small tiles where queries are few, one tile for a CTA or a cluster where tiles are."""
        if config is not None:
            few = few_tiles.suits(config, workload, HOPPER.multiprocessors)
            if not few or not defaults.suits(config, workload):
                return False
        return super().suits(workload, config)

    def traits(self, config: Sm90Config, workload: Workload, *, lse: bool = False) -> str:
        """Raises InvalidConfig also for splits of a packed batch."""
        if config.splits > 1 and workload.packed:
            raise InvalidConfig(f"splits of {self.name} compute no packed batch: {workload.key}")
        return super().traits(config, workload, lse=lse)

    def default_for(self, workload: Workload, limits: ArchLimits) -> Sm90Config:
        """As `default_config`, with another tile or maxima where that is faster; with few tiles for
        the device, one for each CTA or cluster."""
        return few_tiles.faster(defaults.default_for(workload), workload, limits.multiprocessors)

    def carries_over(
        self,
        config: Sm90Config,
        measured: Workload,
        requested: Workload,
        limits: ArchLimits | None = None,
    ) -> bool:
        """Where defaults have the same tile, of which as many CTAs divide the keys."""
        defaults = (self.default_for(w, limits or HOPPER) for w in (measured, requested))
        return len({(c.B_r, c.B_c, c.splits) for c in defaults}) == 1

    def plan(self, config: Sm90Config, traits: str, arch: str) -> CallPlan:
        launch = LaunchPlan(
            params="sm90_forward",
            grid=Grid.PERSISTENT if config.persistent else Grid.TILES,
            tile_rows=config.B_r,
            ctas_per_sm=config.min_ctas_per_sm,
            threads=config.threads,
            cluster_x=config.splits,
            dynamic_smem_bytes=config.smem_bytes,
            q_box_rows=GROUP_ROWS,
            kv_box_rows=config.B_c,
            counter_bytes=COUNTER_BYTES if config.scheduler is Scheduler.DYNAMIC else 0,
        )
        return CallPlan.of(FORWARD, config, traits, arch, (launch,), block_q=WHOLE_QUERIES)

    def whole_lengths(self, config: Sm90Config) -> tuple[int, int]:
        return WHOLE_QUERIES, config.B_c

    def extra_verification(self, config: Sm90Config, traits: str) -> Sequence[Workload]:
        """A last tile with few queries.  More tiles than multiprocessors, so that persistent CTAs
        take several; of unequal length with a mask, and few blocks each, so that rings turn at
        every point."""
        wanted = Traits.parse(traits)
        keys = 3 * config.B_c + (17 if wanted.ragged else 0)
        tiles = (11 * config.min_ctas_per_sm, 15, 5) if config.persistent else (2, 6, 2)
        shape = (*tiles, 2 * config.B_r + 17, keys, config.d_head, config.dtype)
        # With the trait the kernel writes the log-sum-exp, so it must be given the room.
        heads = {"d_head_v": config.d_head_v}
        return (example(wanted, shape, 0, bottom_right=False, **heads),)
