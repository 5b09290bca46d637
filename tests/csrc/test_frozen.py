"""What is launched is what is frozen: grids, clusters, shared memory, tensor maps, parameters."""

from collections import Counter
from functools import cache
from pathlib import Path

from fa_tune import families
from fa_tune.build.native import abi
from fa_tune.build.native.call import problem_of, tensors_by_role
from fa_tune.build.native.core import Core, CoreKernel
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.model import Variant
from fa_tune.core.workload import Workload
from tests.csrc.frozen import (
    COUNTERS,
    L2_BYTES,
    MULTIPROCESSORS,
    WORKSPACE,
    FrozenCall,
    FrozenLaunch,
    digest,
    frozen_calls,
)
from tests.described import Description, DeviceFacts, describe, unloaded

DEVICE = DeviceFacts(MULTIPROCESSORS, L2_BYTES, COUNTERS)


def frozen(found: Description) -> FrozenLaunch:
    return FrozenLaunch(
        *(found.grid, found.block, found.cluster, found.shared_bytes, found.dependent),
        len(found.params),
        digest(found.maps, found.params),
    )


def described(kernel: CoreKernel, call: FrozenCall) -> tuple[int, tuple[FrozenLaunch, ...]]:
    """Bytes of workspace and the launches, none where the core refuses the call."""
    workload = Workload.from_key(call.workload)
    problem = problem_of(workload)
    if call.scale is not None:
        problem.softmax_scale = call.scale
    if call.diagonal is not None:
        problem.mask = abi.Mask.DIAGONAL if workload.causal else abi.Mask.FULL_DIAGONAL
        problem.diagonal = max(-(2**63 - 1), min(call.diagonal, 2**63 - 1))
    named = {name: abi.Tensor(*numbers) for name, numbers in call.tensors.items()}
    for name in {"k", "v", "new_k", "new_v"} & named.keys() if workload.kv_e4m3 else ():
        address, *strides = call.tensors[name]  # frozen in two bytes
        named[name] = abi.Tensor(address, *(2 * stride for stride in strides))
    for name in ("k_scale", "v_scale"):
        if name in named:  # strides of batch and head
            address, batch, head, _ = call.tensors[name]
            named[name] = abi.Tensor(address, batch, 0, head)
    tensors = tensors_by_role(named, added=call.added, page_size=call.page_size)
    try:
        first = describe(kernel, problem, tensors, DEVICE)
        tensors.workspace = WORKSPACE if first.workspace_bytes else 0
        found = [describe(kernel, problem, tensors, DEVICE, i) for i in range(kernel.plan.launches)]
    except InvalidConfig:
        return 0, ()
    return first.workspace_bytes, tuple(map(frozen, found))


def test_what_is_launched_is_what_is_frozen(core: Path) -> None:
    library = Core(core)

    @cache
    def kernel(key: str, traits: str, arch: str) -> CoreKernel:
        variant = Variant.from_key(key)
        plan = families.get(variant.family).plan(families.config_of(variant), traits, arch)
        return unloaded(library, key, plan)

    seen: Counter[str] = Counter()
    for call in frozen_calls():
        found = described(kernel(call.variant, call.traits, call.arch), call)
        assert found == (call.workspace_bytes, call.launches), call
        seen[call.variant.split(":")[0]] += bool(call.launches)
        seen["refused"] += not call.launches
    assert seen.total() == 5000
    assert min(seen.values()) > 300
