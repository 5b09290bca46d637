"""`families.base.KernelFamily` of `sm80_bwd`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from fa_tune.core.arch import ArchLimits
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import BACKWARD, DType, Workload
from fa_tune.families import computed
from fa_tune.families.axes import Axes, expand
from fa_tune.families.constraints import broken_rule
from fa_tune.families.plan import CallPlan, Grid, LaunchPlan
from fa_tune.families.sm80_bwd.config import PADDED_TO, Sm80BackwardConfig
from fa_tune.families.sm80_bwd.constraints import CONSTRAINTS, constraints
from fa_tune.families.template import TemplateFamily
from fa_tune.operations.traits import Traits

ROW_THREADS = 256  # of what is done to each row of O before, and of dQ after
WHOLE_QUERIES = 1  # rows beyond the last have no weights: any number is a whole one
# (B_r, B_c, n_warps, column_warps, stages, ctas) by the larger head dimension, or the next one that
# stands here: the fastest on an H200 first, what fits every device last.
_Shape = tuple[int, int, int, int, int, int]
_LIKELY: dict[int, tuple[_Shape, ...]] = {
    64: (
        *((32, 128, 4, 1, 2, 2), (64, 64, 4, 1, 1, 3), (64, 64, 4, 1, 2, 3)),
        *((64, 64, 4, 2, 2, 2), (64, 64, 4, 1, 1, 2)),
    ),
    96: ((64, 64, 4, 2, 2, 2), (64, 64, 4, 1, 2, 2), (64, 128, 8, 2, 2, 1), (64, 64, 4, 2, 1, 1)),
    128: ((64, 64, 4, 2, 2, 2), (64, 128, 8, 2, 2, 1), (64, 64, 4, 2, 1, 2), (64, 64, 4, 2, 1, 1)),
    256: ((64, 64, 8, 4, 2, 1), (64, 64, 8, 4, 1, 1), (64, 64, 8, 2, 2, 1), (32, 32, 4, 2, 1, 1)),
}
_BLOCKS = (
    *((32, 32, 4), (32, 64, 4), (32, 128, 4), (64, 64, 4), (128, 64, 4)),
    *((64, 64, 8), (64, 128, 8), (128, 128, 8)),
)


class Sm80BackwardFamily(TemplateFamily[Sm80BackwardConfig]):
    """mma.sync and cp.async, for compute capability 8.0 and later."""

    operation = BACKWARD
    name = "sm80_bwd"
    outrun_by = "sm90_bwd"
    entry = "sm80/bwd/entry.cu"
    config_class = Sm80BackwardConfig
    example = "sm80_bwd(FP16, 128, 64, 64, 4): column_warps_2+stages_2+ctas_2"
    computes = computed.BASIC - {"lse"} | computed.MASKS | {"d_head_v"}
    set_keys = "fast, tune or all"

    constraints = staticmethod(constraints)

    def default_config(self, d_head: int, dtype: DType, *, d_head_v: int = 0) -> Sm80BackwardConfig:
        """What runs on every device of the family."""
        return _likely(d_head, dtype, d_head_v)[-1]

    def default_for(self, workload: Workload, limits: ArchLimits) -> Sm80BackwardConfig:
        """What was fastest on an H200 of all that fits."""
        found = _likely(workload.d_head, workload.dtype, workload.d_head_v)
        return next((c for c in found if constraints(c, limits) is None), found[-1])

    def configs(
        self,
        key: str,
        *,
        dtypes: Sequence[DType] | None = None,
        d_head: int = 128,
        d_head_v: int = 0,
    ) -> list[Sm80BackwardConfig]:
        """fast: what is fastest somewhere, in one pass and in two; tune, all: every combination of
        knobs."""
        if key not in ("fast", "tune", "all"):
            raise InvalidConfig(f"unknown kernel set {key!r}; allowed: {self.set_keys}")
        kinds = dtypes or tuple(DType)
        if key == "fast":
            one = (c for dtype in kinds for c in _likely(d_head, dtype, d_head_v))
            found = [replace(c, two_pass=two_pass) for c in one for two_pass in (False, True)]
        else:
            axes: Axes = {
                "dtype": kinds,
                "d_head": (d_head,),
                "column_warps": (1, 2, 4),
                "stages": (1, 2),
                "ctas": (1, 2, 3),
                "two_pass": (False, True),
                "d_head_v": (d_head_v,),
            }
            found = [
                c
                for B_r, B_c, n_warps in _BLOCKS
                for c in expand(
                    Sm80BackwardConfig,
                    {**axes, "B_r": (B_r,), "B_c": (B_c,), "n_warps": (n_warps,)},
                )
            ]
        return sorted(c for c in found if broken_rule(c, CONSTRAINTS) is None)

    def plan(self, config: Sm80BackwardConfig, traits: str, arch: str) -> CallPlan:
        sums = 0 if config.two_pass else config.B_r
        keys = LaunchPlan(
            params="backward",
            grid=Grid.KEY_TILES,
            tile_rows=config.B_c,
            ctas_per_sm=1,
            threads=config.threads,
            dynamic_smem_bytes=config.smem_bytes,
            sum_rows=sums,
        )
        rows = replace(
            keys, grid=Grid.TILES, tile_rows=PADDED_TO, threads=ROW_THREADS, dynamic_smem_bytes=0
        )
        queries = replace(keys, grid=Grid.TILES)
        launches = (rows, queries, keys) if config.two_pass else (rows, keys, rows)
        whole = dict(zip(("block_q", "block_kv"), self.whole_lengths(config), strict=True))
        return CallPlan.of(self.operation, config, traits, arch, launches, **whole)

    def whole_lengths(self, config: Sm80BackwardConfig) -> tuple[int, int]:
        keys = math.lcm(config.B_c, config.B_r) if config.two_pass else config.B_c
        return WHOLE_QUERIES, keys

    def name_expressions(self, config: Sm80BackwardConfig, traits: str) -> Sequence[str]:
        names = ("prepare", *(("dq", "kernel") if config.two_pass else ("kernel", "finish")))
        arguments = f"{config.to_cpp_struct()}, {Traits.parse(traits).to_cpp_struct()}"
        return [f"sm80_backward_{name}<{arguments}>" for name in names]

    def extra_verification(self, config: Sm80BackwardConfig, traits: str) -> Sequence[Workload]:
        return ()


def _likely(d_head: int, dtype: DType, d_head_v: int) -> list[Sm80BackwardConfig]:
    larger = max(d_head, d_head_v)
    of_size = min((size for size in _LIKELY if size >= larger), default=max(_LIKELY))
    return [
        Sm80BackwardConfig(
            *(dtype, d_head, B_r, B_c, n_warps, column_warps, stages, ctas), d_head_v=d_head_v
        )
        for B_r, B_c, n_warps, column_warps, stages, ctas in _LIKELY[of_size]
    ]
