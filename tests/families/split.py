"""A family whose call is two launches: partial results, and a kernel that combines them.

It is what split-KV decoding and the backward pass need of the flow, without their kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from fa_tune import families
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import DType, Workload
from fa_tune.families.base import KernelSpec
from fa_tune.families.launch import LaunchArgs, LaunchDevice, LaunchGeometry, LaunchStep
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

    def kernels(self, config: WaveConfig, traits: str) -> Sequence[KernelSpec]:
        combine = KernelSpec(f"combine<{SPLITS}>", COMBINE_THREADS, 0)
        return (*super().kernels(config, traits), combine)

    def launches(
        self, config: WaveConfig, workload: Workload, args: LaunchArgs, device: LaunchDevice
    ) -> Sequence[LaunchStep]:
        rows = workload.batch * workload.heads * workload.seq_len_q
        geometry = LaunchGeometry((rows, 1, 1), (COMBINE_THREADS, 1, 1), 0)
        addresses = (args.workspace, args.o.address)
        return (
            *super().launches(config, workload, args, device),
            LaunchStep(geometry, [np.array([v], "u8") for v in addresses]),
        )

    def workspace_bytes(self, config: WaveConfig, workload: Workload, device: LaunchDevice) -> int:
        return 4 * SPLITS * workload.batch * workload.heads * workload.seq_len_q

    __hash__ = object.__hash__


def register(monkeypatch: pytest.MonkeyPatch) -> SplitFamily:
    """The family beside those that are there, until the test ends."""
    family = SplitFamily()
    monkeypatch.setitem(families._FAMILIES, family.name, family)
    return family
