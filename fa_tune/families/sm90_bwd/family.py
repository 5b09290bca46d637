"""`families.base.KernelFamily` of `sm90_bwd`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from fa_tune.core import hooks
from fa_tune.core.arch import ArchLimits, limits
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import BACKWARD, DType, Workload
from fa_tune.families import computed
from fa_tune.families.axes import Axes, expand
from fa_tune.families.plan import CallPlan, Grid, LaunchPlan
from fa_tune.families.sm90_bwd import clusters
from fa_tune.families.sm90_bwd.config import (
    KEYS,
    PADDED_TO,
    Sm90BackwardConfig,
    rows_of_step,
)
from fa_tune.families.sm90_bwd.constraints import OTHER_V, constraints, holds_d_head
from fa_tune.families.template import TemplateFamily
from fa_tune.operations.forward.cases import example
from fa_tune.operations.traits import Traits

COUNTER_BYTES = 8  # of the dynamic scheduler: kernels/common/problem.cuh, SchedulerCounters
BOX_ROWS = 64  # of what a warpgroup copies at a time
THREADS = 384  # two warpgroups that compute and one that loads
PREPARE_THREADS, FINISH_THREADS = 1024, 256  # of what is done to each row of O, and of dQ
SHORT = 768  # queries, up to which warpgroups meet up to d_head 64
# Queries up to which there are two passes, by columns of tiles, without a mask and with one.  Tiles
# of fewer columns have those of 64.
TWO_PASSES = {64: (128, 64), 96: (384, 384), 128: (512, 896)}
# Keys up to which there are, in all or for each query: dQ's pass has a CTA for 128 queries, which
# goes through all of their keys (benchmarks/backward_few_queries_h200.tsv).
TWO_PASS_KEYS, TWO_PASS_RATIO = 256, 1.5
HOPPER = limits((9, 0))
MOST_CLUSTERED = 2 * HOPPER.multiprocessors  # tiles, of what clusters are tried with
_WIDE_DQ_KEYS = {192: (64, 80), 256: (48,)}  # by head dimension
WHOLE_QUERIES = 1  # rows beyond the last have no weights: any number is a whole one


class Sm90BackwardFamily(TemplateFamily[Sm90BackwardConfig]):
    """wgmma and TMA, for compute capability 9.0."""

    operation = BACKWARD
    name = "sm90_bwd"
    entry = "sm90/bwd/entry.cu"
    config_class = Sm90BackwardConfig
    example = "sm90_bwd(FP16, 128, 64, 128): q_stages_3"
    computes = (
        computed.BASIC
        | computed.MASKS
        | computed.PACKED
        | {"softcap", "alibi", "score_hook", "d_head_v"}
    )
    set_keys = "fast, tune or all"

    constraints = staticmethod(constraints)

    def suits(self, workload: Workload, config: Sm90BackwardConfig | None = None) -> bool:
        """Clusters where tiles are few."""
        if config is not None and (
            (config.cluster > 1 and clusters.tiles_of(workload) > MOST_CLUSTERED)
            or (config.dq_cluster > 1 and clusters.query_tiles_of(workload) > MOST_CLUSTERED)
        ):
            return False
        return super().suits(workload, config) and not _lacking(workload)

    def traits(self, config: Sm90BackwardConfig, workload: Workload, *, lse: bool = False) -> str:
        """Raises InvalidConfig also for a hook without its derivative, or after ALiBi's bias."""
        if lacking := _lacking(workload):
            raise InvalidConfig(f"{self.name} kernels {lacking}: {workload.key}")
        return super().traits(config, workload, lse=lse)

    def compile_arch(self, limits: ArchLimits) -> str:
        return f"{limits.arch}a"

    def default_config(self, d_head: int, dtype: DType, *, d_head_v: int = 0) -> Sm90BackwardConfig:
        """In one pass by persistent CTAs, but for wide heads."""
        rows = rows_of_step(d_head)
        found = Sm90BackwardConfig(dtype, d_head, rows, KEYS, 3, d_head_v=d_head_v)
        if not found.is_wide:
            found = replace(found, dynamic=True)
            return replace(found, q_stages=2, same_step=True) if found.padded_d == 96 else found
        dq_keys = _WIDE_DQ_KEYS[found.padded_d][-1]
        return replace(found, turns=True, two_pass=True, dq_keys=dq_keys)

    def default_for(self, workload: Workload, limits: ArchLimits) -> Sm90BackwardConfig:
        """With clusters where tiles are few for the device; see `clusters.clustered`."""
        return clusters.clustered(self._of_many_tiles(workload), workload, limits)

    def _of_many_tiles(self, workload: Workload) -> Sm90BackwardConfig:
        """With a mask, or short sequences up to d_head 64, warpgroups that meet in each step.  Of
        short sequences two passes: clearing sums and bringing them to dQ takes as long as
        products.  dQ's pass has steps of 64 keys then, but where 96 are all."""
        found = self.default_config(workload.d_head, workload.dtype, d_head_v=workload.d_head_v)
        masked = workload.causal or workload.windowed
        if found.is_wide:
            return found
        few_queries = TWO_PASSES[max(found.padded_d, min(TWO_PASSES))][masked]
        few_keys = max(TWO_PASS_KEYS, TWO_PASS_RATIO * workload.seq_len_q)
        if workload.seq_len_q <= few_queries and workload.seq_len_kv <= few_keys:
            dq_keys = 96 if 64 < workload.seq_len_kv <= 96 else 64
            found = replace(found, q_stages=3, same_step=False)
            return replace(found, two_pass=True, turns=True, dq_keys=dq_keys)
        if found.same_step:
            return found
        if not masked and not (found.d_head <= 64 and workload.seq_len_q <= SHORT):
            return found
        return replace(found, q_stages=3 if found.d_head <= 64 else 2, same_step=True)

    def carries_over(
        self,
        config: Sm90BackwardConfig,
        measured: Workload,
        requested: Workload,
        limits: ArchLimits | None = None,
    ) -> bool:
        """Where defaults have as many passes, and CTAs for a tile."""
        arch = limits or HOPPER
        first, second = (self.default_for(w, arch) for w in (measured, requested))
        kinds = [(c.two_pass, c.dynamic, c.B_c, c.cluster, c.dq_cluster) for c in (first, second)]
        return kinds[0] == kinds[1]

    def configs(
        self,
        key: str,
        *,
        dtypes: Sequence[DType] | None = None,
        d_head: int = 128,
        d_head_v: int = 0,
    ) -> list[Sm90BackwardConfig]:
        """fast: what was fastest somewhere; tune, all: every combination of knobs."""
        if key not in ("fast", "tune", "all"):
            raise InvalidConfig(f"unknown kernel set {key!r}; allowed: {self.set_keys}")
        alike = d_head_v in (0, d_head)
        if not holds_d_head(d_head) or not (alike or (d_head, d_head_v) == OTHER_V):
            return []
        either = (False, True)
        default = self.default_config(d_head, DType.BF16, d_head_v=d_head_v)
        wide, padded = default.is_wide, default.padded_d
        common: Axes = {
            "dtype": dtypes or tuple(DType),
            "d_head": (d_head,),
            "B_r": (default.B_r,),
            "B_c": (KEYS,),
            "q_stages": (2, 3),
            "turns": either,
            "dynamic": (False,) if wide else either,
            "d_head_v": (d_head_v,),
        }
        if wide:
            two: Axes = {"two_pass": (True,), "dq_keys": _WIDE_DQ_KEYS[padded]}
            if key == "fast":
                # Without a mask d_head 256 was fastest without turns.
                turns = either if padded == 256 else (True,)
                two = {**two, "turns": turns, "dq_keys": _WIDE_DQ_KEYS[padded][-1:]}
            found = list(expand(Sm90BackwardConfig, {**common, **two}))
        else:
            one: Axes = {**common, "same_step": either}
            two = {**common, "two_pass": (True,), "dq_keys": (64, 96, 128)}
            if key == "fast":
                one = {**one, "dynamic": (True,)}
                two = {**two, "q_stages": (3,), "dq_keys": (64, 96), "turns": (True,)}
            found = [c for axes in (one, two) for c in expand(Sm90BackwardConfig, axes)]
        of_few = (clusters.of_sizes(replace(default, dtype=dtype)) for dtype in common["dtype"])
        found += itertools.chain.from_iterable(of_few)
        return [c for c in dict.fromkeys(found) if not (c.same_step and c.turns)]

    def plan(self, config: Sm90BackwardConfig, traits: str, arch: str) -> CallPlan:
        counters = COUNTER_BYTES if config.dynamic else 0
        keys = LaunchPlan(
            params="backward",
            grid=Grid.PERSISTENT_KEYS if config.dynamic else Grid.KEY_TILES,
            tile_rows=config.B_c,
            ctas_per_sm=1,
            threads=THREADS,
            dynamic_smem_bytes=config.smem_bytes,
            q_box_rows=config.B_r,
            kv_box_rows=BOX_ROWS,
            counter_bytes=counters,
            dependent=1,
            sum_rows=0 if config.two_pass else config.B_r,
            cluster_x=config.cluster,
        )
        if config.two_pass:
            queries = LaunchPlan(
                params="backward_dq",
                grid=Grid.PERSISTENT if config.dynamic else Grid.TILES,
                tile_rows=PADDED_TO,
                ctas_per_sm=1,
                threads=THREADS,
                dynamic_smem_bytes=config.dq_smem_bytes,
                q_box_rows=BOX_ROWS,
                kv_box_rows=config.dq_keys,
                counter_bytes=counters,
                cluster_x=config.dq_cluster,
            )
            launches: tuple[LaunchPlan, ...] = (queries, keys)
        else:
            rows = LaunchPlan(
                params="backward",
                grid=Grid.TILES,
                tile_rows=PADDED_TO,
                ctas_per_sm=1,
                threads=PREPARE_THREADS,
                dynamic_smem_bytes=0,
                sum_rows=config.B_r,
            )
            launches = (rows, keys, replace(rows, threads=FINISH_THREADS, dependent=1))
        return CallPlan.of(self.operation, config, traits, arch, launches, block_q=WHOLE_QUERIES)

    def whole_lengths(self, config: Sm90BackwardConfig) -> tuple[int, int]:
        return WHOLE_QUERIES, config.B_c

    def name_expressions(self, config: Sm90BackwardConfig, traits: str) -> Sequence[str]:
        names: tuple[str, ...] = ("prepare", "kernel", "finish")
        if config.two_pass:
            names = ("dq", "wide" if config.is_wide else "kernel")
        arguments = f"{config.to_cpp_struct()}, {Traits.parse(traits).to_cpp_struct()}"
        return [f"sm90_backward_{name}<{arguments}>" for name in names]

    def extra_verification(self, config: Sm90BackwardConfig, traits: str) -> Sequence[Workload]:
        """More tiles than multiprocessors, so that persistent CTAs take several, of unequal length
        with a mask, and steps around the depth of the rings."""
        wanted = Traits.parse(traits)
        if not config.dynamic:
            return ()
        keys = 3 * config.B_c + (17 if wanted.ragged else 0)
        shape = (11, 15, 5, 2 * config.B_r + 17, keys, config.d_head, config.dtype)
        return (replace(example(wanted, shape, 0, bottom_right=False), op=BACKWARD),)


def _lacking(workload: Workload) -> str:
    """What a problem's hook lacks, or has too much; empty if it can be computed."""
    if workload.score_hook is None:
        return ""
    if not hooks.hook_of(workload.score_hook).has_derivative:
        return "need a function score_hook_derivative beside a score hook"
    return "compute no score hook after ALiBi's bias" if workload.alibi else ""
