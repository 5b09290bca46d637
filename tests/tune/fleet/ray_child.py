"""A `RemoteGpu` on a machine without GPUs: Ray numbers them, and the workers only pretend."""

from __future__ import annotations

import os
from dataclasses import replace

from fa_tune.core.jobs import TimeJob
from fa_tune.core.model import DeviceInfo
from fa_tune.tune.fleet.ray_actor import RemoteGpu
from tests.tune.fakes import H200


class FakeGpu(RemoteGpu):
    modules = ()

    def __init__(self) -> None:
        super().__init__()
        TimeJob.handler = "tests.tune.fleet.gpu_child:timed"

    def device(self) -> DeviceInfo | None:
        return replace(H200, uuid=f"GPU-{'abcdefgh'[int(os.environ['CUDA_VISIBLE_DEVICES'])]}")


class OddGpu(FakeGpu):
    """One of the GPUs is of another model."""

    def device(self) -> DeviceInfo | None:
        found = super().device()
        return replace(found, name="NVIDIA A100") if found.uuid == "GPU-b" else found
