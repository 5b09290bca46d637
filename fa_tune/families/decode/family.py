"""`families.base.KernelFamily` of `decode`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fa_tune.core.arch import ArchLimits
from fa_tune.core.workload import FORWARD, MOST_TILE_ROWS, DType, Workload
from fa_tune.families import computed
from fa_tune.families.decode import clusters, defaults, sets, tiles
from fa_tune.families.decode import constraints as rules
from fa_tune.families.decode.bounds import bounds_of
from fa_tune.families.decode.config import MMA_M, Combine, DecodeConfig
from fa_tune.families.fields import is_kv_e4m3
from fa_tune.families.plan import CallPlan, Grid, LaunchPlan
from fa_tune.families.template import TemplateFamily
from fa_tune.operations.forward.cases import example, fewest_queries, has_alignment
from fa_tune.operations.traits import Traits

MAX_CTAS = 1024  # of a launch, each with a counter
COUNTER_BYTES = 4


class DecodeFamily(TemplateFamily[DecodeConfig]):
    """Few queries after many keys, for compute capability 8.0 and later."""

    operation = FORWARD
    name = "decode"
    entry = "decode/entry.cu"
    config_class = DecodeConfig
    example = "decode(BF16, 128, 16, 64, 4): stages_4+ctas_2"
    set_keys = sets.ALLOWED_KEYS
    computes = computed.SCORES | computed.CACHE

    constraints = staticmethod(rules.constraints)

    def suits(self, workload: Workload, config: DecodeConfig | None = None) -> bool:
        """Where reading K and V takes the time, and any with a cache, which no other family
        takes; by no larger a tile than rows need, and one that counts for keys only where the
        device alone knows lengths."""
        suits = super().suits(workload) and (workload.cached or workload.decode_shape)
        if not suits or config is None:
            return suits
        small = config.B_r == MMA_M or config.B_r < 2 * workload.rows_of_kv_head
        return small and (workload.cached or config.tile_keys == 0)

    def carries_over(
        self,
        config: DecodeConfig,
        measured: Workload,
        requested: Workload,
        limits: ArchLimits | None = None,
    ) -> bool:
        """Not from clusters that all run at a time to more than can, nor from whole tiles to fewer
        than fill the GPU as well, nor between rows of one tile and of several but with a tile that
        both fill."""
        (one, _), (other, _) = measured.row_tiles, requested.row_tiles
        if (one == 1) != (other == 1) and not _is_full(config, measured, requested):
            return False
        arch = limits or tiles.H200
        before, now = (_tiles_of(w, config.B_r) for w in (measured, requested))
        if config.order:
            return now >= min(before, arch.multiprocessors * config.ctas_per_sm)
        first, second = (clusters.all_at_once(config, n, arch) for n in (before, now))
        return config.cluster == 1 or first == second

    def configs(
        self,
        key: str,
        *,
        dtypes: Sequence[DType] | None = None,
        d_head: int = 128,
        d_head_v: int = 0,
    ) -> list[DecodeConfig]:
        return sets.get_configs(key, dtypes=dtypes, heads=tiles.Heads(d_head, d_head_v))

    def default_config(self, d_head: int, dtype: DType, *, d_head_v: int = 0) -> DecodeConfig:
        return defaults.default_config(tiles.Heads(d_head, d_head_v), dtype)

    def default_for(self, workload: Workload, arch: ArchLimits) -> DecodeConfig:
        return defaults.default_for(workload, arch, bounds_of(arch.compute_capability))

    def traits(self, config: DecodeConfig, workload: Workload, *, lse: bool = False) -> str:
        """Always ragged: one kernel serves every length."""
        return str(replace(Traits.parse(super().traits(config, workload, lse=lse)), ragged=True))

    # Kernels --------------------------------------------------------------------------------

    def name_expressions(self, config: DecodeConfig, traits: str) -> Sequence[str]:
        name = self.name_expression(config, traits)
        if config.combine is not Combine.KERNEL:
            return (name,)
        return name, name.replace("decode_", "decode_combine_", 1)

    def plan(self, config: DecodeConfig, traits: str, arch: str) -> CallPlan:
        parts = LaunchPlan(
            params="decode",
            grid=Grid.SHARES,
            tile_rows=config.B_r,
            ctas_per_sm=config.ctas_per_sm,
            threads=config.threads,
            dynamic_smem_bytes=config.smem_bytes,
            cluster_x=config.cluster,
            counter_bytes=counter_bytes(config),
            share_keys=config.B_c,
            min_blocks=config.min_blocks,
            aligned=int(config.aligned),
            order=config.order,
            dependent=int(config.dependent),
        )
        launches = [parts]
        if config.combine is Combine.KERNEL:
            # Whole warps, of whose threads each has four columns.
            threads = -(-config.d_v // 128) * 32
            launches.append(
                replace(parts, grid=Grid.TILES_ROWS, threads=threads, dynamic_smem_bytes=0)
            )
        # Every length is served by one kernel.
        served = {"block_q": 1, "block_kv": 1, "ragged": 0, "decode_shape": 1}
        return CallPlan.of(FORWARD, config, traits, arch, tuple(launches), **served)

    # Checking -------------------------------------------------------------------------------

    def extra_verification(self, config: DecodeConfig, traits: str) -> Sequence[Workload]:
        """Workloads of as few queries as may be after many keys, of several parts for each tile;
        and more tiles than CTAs."""
        wanted = Traits.parse(traits)
        if not wanted.ragged:
            return ()  # the same kernel by another name
        kind = (config.d_head, config.dtype)
        shapes = (
            (1, 8, 1, fewest_queries(wanted), 100 * config.B_c + 17, *kind),
            (2, 12, 3, 3, 31 * config.B_c + 1, *kind),
            (61, 16, 16, 2, 3 * config.B_c + 5, *kind),
        )
        caches: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...] = (
            # Lengths on the device, none among them, and pages in random order.
            ((1, 8, 2, 2, 1, *kind), {"cache_lengths": _listed(config.B_c)}),
            ((37, 4, 1, 3, 777, *kind), {"cache_lengths": "lognormal", "page_size": 48}),
        )
        aligned = has_alignment(wanted)
        return tuple(
            replace(
                example(wanted, shape, number, bottom_right=aligned, d_head_v=config.d_head_v),
                kv_e4m3=is_kv_e4m3(config),
            )
            for number, shape in enumerate(shapes)
        ) + tuple(
            replace(
                example(wanted, shape, number, bottom_right=aligned, d_head_v=config.d_head_v),
                kv_e4m3=is_kv_e4m3(config),
                **cache,
            )
            for number, (shape, cache) in enumerate(caches)
        )


def counter_bytes(config: DecodeConfig) -> int:
    """Bytes of a word for each CTA: the parts of a tile that are done, and which of the CTAs that
    combine together know that or have gone (kernels/decode/together.cuh)."""
    counts = config.combine is not Combine.KERNEL and config.cluster == 1
    return MAX_CTAS * COUNTER_BYTES if counts else 0


def _is_full(config: DecodeConfig, *workloads: Workload) -> bool:
    """Whether a tile is as large as several of them are, and not too large for any of them."""
    least = min(w.rows_of_kv_head for w in workloads)
    return MOST_TILE_ROWS <= config.B_r < 2 * least


def _tiles_of(workload: Workload, rows: int) -> int:
    """Its tiles of so many rows."""
    return workload.batch * workload.kv_heads * -(-workload.rows_of_kv_head // rows)


def _listed(block: int) -> str:
    return f"{block}+0+{9 * block + 3}+1+{block - 1}+5+{4 * block}"
