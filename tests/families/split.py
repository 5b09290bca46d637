"""A family whose call is two launches: partial results, and a kernel that combines them.

It is what split-KV decoding and the backward pass need of the flow, without their kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from fa_tune import families
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import DType
from fa_tune.families.plan import CallPlan
from tests.families.wave import KERNEL, WaveConfig, WaveFamily

SPLITS = 4
COMBINE_THREADS = 64
COMBINE = """
template <int kSplits>
__global__ void combine(const float* partial, float* out) {
    __shared__ float part[512];
    float sum = 0.0f;
    for (int i = 0; i < kSplits; ++i) sum += partial[i * gridDim.x + blockIdx.x];
    part[threadIdx.x] = sum;
    __syncthreads();
    out[blockIdx.x] = part[(threadIdx.x + 1) % 64];
}
"""


@dataclass(frozen=True, order=True)
class SplitConfig(WaveConfig):
    """A config of the first kernel; the second has no knobs."""

    word: ClassVar[str] = "split"


class SplitFamily(WaveFamily):
    def __init__(self) -> None:
        super().__init__(
            name="split",
            config_class=SplitConfig,
            example="split(FP16, 128, 128x128, 2): pingpong",
        )

    def recognises(self, text: str) -> bool:
        return "split(" in text

    def parse(self, text: str, *, d_head: int = 128) -> SplitConfig:
        if "split(" not in text:
            raise InvalidConfig(f"no split config in {text!r}")
        return SplitConfig(**vars(super().parse(text.replace("split(", "wave("), d_head=d_head)))

    def default_config(self, d_head: int, dtype: DType, *, d_head_v: int = 0) -> SplitConfig:
        return SplitConfig(**vars(super().default_config(d_head, dtype)))

    def source_files(self) -> Mapping[str, str]:
        return {"wave/wave.cuh": KERNEL.replace("SCALE", self.scale) + COMBINE}

    def name_expressions(self, config: WaveConfig, traits: str) -> Sequence[str]:
        return (self.name_expression(config, traits), f"combine<{SPLITS}>")

    def plan(self, config: WaveConfig, traits: str, arch: str) -> CallPlan:
        call = super().plan(config, traits, arch)
        combine = replace(call.launches[0], threads=COMBINE_THREADS, dynamic_smem_bytes=0)
        return CallPlan(replace(call.plan, launches=2), (*call.launches, combine))

    __hash__ = object.__hash__


def register(monkeypatch: pytest.MonkeyPatch) -> SplitFamily:
    """The family beside those that are there, until the test ends."""
    family = SplitFamily()
    monkeypatch.setitem(families._FAMILIES, family.name, family)
    return family
