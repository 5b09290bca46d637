"""What the GPU tests share: one device, one cache of compiled kernels for the whole run."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from fa_tune import families
from fa_tune.build.cache import ArtifactStore
from fa_tune.build.compile import BuildRequest, build
from fa_tune.core import devices
from fa_tune.core.arch import limits, parse_arch
from fa_tune.core.model import Artifact
from fa_tune.core.options import MachineOptions
from fa_tune.families.base import KernelFamily

Built = Callable[[Sequence[BuildRequest]], list[Artifact]]


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> MachineOptions:
    """The first GPU, and a cache folder that starts empty, unless FA_TUNE_TEST_CACHE names one:
    runs that follow each other then compile each kernel once."""
    given = os.environ.get("FA_TUNE_TEST_CACHE")
    return MachineOptions(cache_dir=Path(given) if given else tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def arch() -> str:
    """The device's architecture, `sm_90`."""
    device = devices.find_device()
    assert device is not None
    return limits(device.compute_capability).arch


@pytest.fixture(scope="module", params=families.family_names())
def family(request: pytest.FixtureRequest, arch: str) -> KernelFamily:
    """Every family that runs here."""
    found = families.get(request.param)
    if (why := families.device_rejection(found, parse_arch(arch))) is not None:
        pytest.skip(f"{found.name}: {why.reason}")
    return found


@pytest.fixture(scope="session")
def built(machine: MachineOptions) -> Built:
    """Compiles requests; every one must succeed."""

    def compiled(requests: Sequence[BuildRequest]) -> list[Artifact]:
        assert machine.cache_dir is not None
        results = build(requests, ArtifactStore(machine.cache_dir))
        failed = {r.request: r.reason for r in results if r.artifact is None}
        assert not failed
        return [r.artifact for r in results if r.artifact is not None]

    return compiled


@pytest.fixture
def hopper(arch: str) -> None:
    """Nothing else runs wgmma."""
    if parse_arch(arch).compute_capability != (9, 0):
        pytest.skip("the sm90 family needs a GPU of compute capability 9.0")
