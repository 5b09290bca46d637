"""The backward pass by a thread for each query and each key, in the simplest way."""

from __future__ import annotations

from dataclasses import dataclass

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import DType
from fa_tune.families.axes import expand
from fa_tune.families.computed import BASIC
from fa_tune.families.constraints import broken_rule, too_old
from fa_tune.families.fields import ConfigBase, d_head_v_field, tuple_field
from fa_tune.families.plan import CallPlan, Grid, LaunchPlan
from fa_tune.families.template import TemplateFamily

RULES = (("rows_are_warps", "B_r must be whole warps of a CTA", lambda c: c.B_r % 32 == 0),)


@dataclass(frozen=True, order=True)
class ToyConfig(ConfigBase):
    HEAD = "toy({c.dtype.name}, {c.d_head}, {c.B_r}, {c.B_c})"

    dtype: DType = tuple_field("element type of Q, K, V and O")
    d_head: int = tuple_field("head dimension")
    B_r: int = tuple_field("queries of a CTA")
    B_c: int = tuple_field("keys of a CTA")
    d_head_v: int = d_head_v_field()

    def kernel_name(self):
        return "toy_backward_kernel"


class ToyFamily(TemplateFamily):
    operation = "toy"
    name = "toy"
    entry = "toy/entry.cu"
    config_class = ToyConfig
    example = "toy(FP16, 64, 32, 32):"
    set_keys = "tune"
    computes = BASIC | {"wide_sums"}

    def constraints(self, config, limits):
        return too_old(limits, (8, 0)) or broken_rule(config, RULES)

    def default_config(self, d_head, dtype, *, d_head_v=0):
        return ToyConfig(dtype, d_head, 32, 32, d_head_v)

    def configs(self, key, *, dtypes=None, d_head=128, d_head_v=0):
        if key != "tune":
            raise InvalidConfig(f"unknown kernel set {key!r}; allowed: {self.set_keys}")
        kind = {"dtype": dtypes or tuple(DType), "d_head": (d_head,), "d_head_v": (d_head_v,)}
        return list(expand(ToyConfig, kind | {"B_r": (32, 64), "B_c": (32,)}))

    def plan(self, config, traits, arch):
        launch = LaunchPlan(
            params="toy_backward",
            grid=Grid.BLOCKS_HEADS_BATCH,
            tile_rows=config.B_r,
            ctas_per_sm=1,
            threads=config.B_r,
            dynamic_smem_bytes=0,
        )
        return CallPlan.of(self.operation, config, traits, arch, (launch,))

    def extra_verification(self, config, traits):
        return ()
