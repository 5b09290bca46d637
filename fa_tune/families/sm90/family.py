"""The family's side of `families.base.KernelFamily` for `sm90`: how its configs are named,
compiled and launched."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fa_tune.core.arch import ArchLimits
from fa_tune.core.model import Rejected
from fa_tune.core.workload import FORWARD, DType, Workload
from fa_tune.families import computed
from fa_tune.families.launch import LaunchArgs, LaunchDevice, LaunchGeometry
from fa_tune.families.plan import CallPlan
from fa_tune.families.sm90 import constraints as rules
from fa_tune.families.sm90 import launch, names, sets
from fa_tune.families.sm90.config import Sm90Config
from fa_tune.families.template import TemplateFamily
from fa_tune.families.work_tiles import list_bytes
from fa_tune.operations.forward.cases import example
from fa_tune.operations.traits import Traits

if TYPE_CHECKING:
    import numpy as np


class Sm90Family(TemplateFamily[Sm90Config]):
    """The family's side of `families.base.KernelFamily`."""

    operation = FORWARD
    name = "sm90"
    looks_like = re.compile(r"\bsm90\s*\(|\bSm90Config\b")
    entry = "sm90/fwd/entry.cu"
    config_class = Sm90Config
    example = "sm90(FP16, 128, 128x128): stages_2+q_stages_2+pingpong+overlap+stale_max+dynamic"
    computes = computed.SCORES | computed.PLACED_SCORES | computed.PACKED
    set_keys = "fast, tune, all or prog"

    def parse(self, text: str, *, d_head: int = 128) -> Sm90Config:
        return names.parse(text, d_head=d_head)

    def compile_arch(self, limits: ArchLimits) -> str:
        return f"{limits.arch}a"

    def configs(
        self,
        key: str,
        *,
        dtypes: Sequence[DType] | None = None,
        d_head: int = 128,
        d_head_v: int = 0,
    ) -> list[Sm90Config]:
        return sets.get_configs(key, dtypes=dtypes, d_head=d_head, d_head_v=d_head_v)

    def tune_rejection(self, config: Sm90Config) -> Rejected | None:
        return sets.tune_rejection(config)

    def constraints(self, config: Sm90Config, limits: ArchLimits) -> Rejected | None:
        return rules.constraints(config, limits)

    def default_config(self, d_head: int, dtype: DType, *, d_head_v: int = 0) -> Sm90Config:
        """What was fastest or near it on an H200 at every length, with a mask and without."""
        return sets.default_config(d_head, dtype, d_head_v=d_head_v)

    def default_for(self, workload: Workload, limits: ArchLimits) -> Sm90Config:
        """As `default_config`, but for some workloads with d_head 64 and 256."""
        return sets.default_for(workload)

    def geometry(
        self, config: Sm90Config, workload: Workload, device: LaunchDevice
    ) -> LaunchGeometry:
        return launch.geometry(config, workload, device)

    def plan(self, config: Sm90Config, traits: str, arch: str) -> CallPlan:
        return launch.plan(config, traits, arch)

    def scratch_bytes(self, config: Sm90Config) -> int:
        return launch.counter_bytes(config)

    def workspace_bytes(self, config: Sm90Config, workload: Workload, device: LaunchDevice) -> int:
        return list_bytes(workload)

    def kernel_args(
        self, config: Sm90Config, workload: Workload, args: LaunchArgs, device: LaunchDevice
    ) -> list[np.ndarray]:
        return launch.kernel_args(config, workload, args, device)

    def whole_lengths(self, config: Sm90Config) -> tuple[int, int]:
        return launch.WHOLE_QUERIES, config.B_c

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
