"""Launches of kernels that are never loaded, as the C++ core describes them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from fa_tune import families
from fa_tune.build.native import abi
from fa_tune.build.native.call import problem_of, tensors_by_role
from fa_tune.build.native.core import Core, CoreKernel, KernelImage
from fa_tune.core.workload import Workload
from fa_tune.families.base import Config
from fa_tune.families.plan import CallPlan


@dataclass(frozen=True)
class DeviceFacts:
    """What a launch depends on beside its workload and tensors; `counters`: the address of zeros in
    device memory."""

    multiprocessors: int
    l2_bytes: int
    counters: int = 0


@dataclass(frozen=True)
class Description:
    """One launch: the kernel takes the tensor maps, then the struct whose bytes `params` has."""

    grid: tuple[int, ...]
    block: tuple[int, ...]
    cluster: tuple[int, ...]
    shared_bytes: int
    dependent: bool
    maps: Sequence[abi.TensorMap]
    params: bytes
    workspace_bytes: int


DEVICE = DeviceFacts(multiprocessors=132, l2_bytes=50 << 20, counters=1 << 40)


@cache
def core() -> Core:
    """The core, built once."""
    return Core()


def unloaded(core: Core, config: str, call: CallPlan) -> CoreKernel:
    """A kernel to describe launches of, which is never launched."""
    symbols = tuple(f"launch_{i}" for i in range(len(call.launches)))
    return core.kernel(KernelImage(config, call, symbols, b"none"))


def describe(
    kernel: CoreKernel,
    problem: abi.Problem,
    tensors: abi.Tensors,
    device: DeviceFacts = DEVICE,
    launch: int = 0,
) -> Description:
    """What a call passes to the driver for one of its launches; it may lack its workspace.  Raises
    InvalidConfig for what the kernel does not compute."""
    facts = abi.DeviceFacts(device.multiprocessors, 0, device.l2_bytes, device.counters)
    d = abi.Description()
    function = kernel.core.library.fa_tune_describe
    kernel.core.check(function(kernel.handle, problem, tensors, facts, launch, d))
    shape = tuple(d.grid), tuple(d.block), tuple(d.cluster), d.shared_bytes, bool(d.dependent)
    return Description(
        *shape, d.maps[: d.map_count], bytes(d.params)[: d.params_bytes], d.workspace_bytes
    )


def described(
    config: Config,
    workload: Workload,
    given: Mapping[str, abi.Tensor] | None = None,
    *,
    device: DeviceFacts = DEVICE,
    added: int = 0,
    page_size: int = 0,
) -> tuple[Description, ...]:
    """The launches of a call of a config on a workload; `given`: its tensors besides Q, K, V, O,
    their gradients and the log-sum-exp, or in their place.  Raises InvalidConfig for what the core
    refuses."""
    family = families.of(config)
    plan = family.plan(config, family.traits(config, workload), "sm_90")
    kernel = unloaded(core(), str(config), plan)
    names = ("q", "k", "v", "o", "do", "dq", "dk", "dv")
    usual = {name: abi.Tensor(4096 * i, 56, 40, 24) for i, name in enumerate(names, 1)}
    tensors = tensors_by_role(
        usual | {"lse": abi.Tensor(1 << 20)} | dict(given or {}),
        workspace=1 << 30,
        added=added,
        page_size=page_size,
    )
    problem = problem_of(workload)
    return tuple(describe(kernel, problem, tensors, device, i) for i in range(len(plan.launches)))
