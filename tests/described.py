"""Launches of kernels that are never loaded, as the C++ core describes them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from fa_tune import families
from fa_tune.build.native import abi
from fa_tune.build.native.call import problem_of, tensors_by_role
from fa_tune.build.native.core import Core, Description, DeviceFacts
from fa_tune.core.workload import Workload
from fa_tune.families.base import Config

DEVICE = DeviceFacts(multiprocessors=132, l2_bytes=50 << 20, counters=1 << 40)


@cache
def core() -> Core:
    """The core, built once."""
    return Core()


def described(
    config: Config,
    workload: Workload,
    given: Mapping[str, abi.Tensor] | None = None,
    *,
    device: DeviceFacts = DEVICE,
    added: int = 0,
    page_size: int = 0,
) -> tuple[Description, ...]:
    """The launches of a call of a config on a workload; `given`: its tensors besides Q, K, V, O and
    the log-sum-exp, or in their place.  Raises InvalidConfig for what the core refuses."""
    family = families.of(config)
    call = family.plan(config, family.traits(config, workload), "sm_90")
    kernel = core().described(str(config), call)
    usual = {name: abi.Tensor(4096 * i, 56, 40, 24) for i, name in enumerate("qkvo", 1)}
    tensors = tensors_by_role(
        usual | {"lse": abi.Tensor(1 << 20)} | dict(given or {}), added=added, page_size=page_size
    )
    problem = problem_of(workload)
    tensors.workspace = 1 << 30
    return tuple(
        kernel.describe(problem, tensors, device, number) for number in range(len(call.launches))
    )
