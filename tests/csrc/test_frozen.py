"""What is launched is what is frozen: grids, clusters, shared memory, tensor maps, parameters."""

from __future__ import annotations

import ctypes
from collections import Counter
from typing import Any

import pytest

from fa_tune import families
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.model import Variant
from fa_tune.core.workload import Workload
from fa_tune.families import tensor_maps
from fa_tune.families.launch import CacheArgs, LaunchArgs, LaunchDevice, LaunchStep, TensorArg
from tests.csrc.frozen import (
    COUNTERS,
    L2_BYTES,
    MULTIPROCESSORS,
    WORKSPACE,
    FrozenCall,
    FrozenLaunch,
    TensorMap,
    digest,
    frozen_calls,
)

DEVICE = LaunchDevice(MULTIPROCESSORS, L2_BYTES)
CACHE = ("cache_seqlens", "page_table", "new_k", "new_v")


class Recorder:
    """In place of the driver: maps hold a number, by which `maps` knows what was asked for."""

    def __init__(self) -> None:
        self.maps: list[TensorMap] = []

    def cuTensorMapEncodeTiled(
        self, memory: Any, kind: int, rank: int, address: Any, lengths: Any, strides: Any,
        box: Any, steps: Any, *modes: int,
    ) -> int:  # fmt: skip
        """As the driver's function of this name; illegal strides are refused as there."""
        if any(s % 16 or not 0 <= s < 2**40 for s in strides):
            return 1
        found = TensorMap(address.value or 0, kind, [*lengths], [*strides], box[1])
        ctypes.memmove(memory, len(self.maps).to_bytes(128, "little"), 128)
        self.maps.append(found)
        return 0


def launched(step: LaunchStep, recorder: Recorder) -> FrozenLaunch:
    g = step.geometry
    *maps, params = step.args
    told = [recorder.maps[int.from_bytes(m.tobytes(), "little")] for m in maps]
    return FrozenLaunch(
        *(g.grid, g.block, g.cluster, g.dynamic_smem_bytes, g.dependent),
        params.nbytes,
        digest(told, params.tobytes()),
    )


def by_python(call: FrozenCall, recorder: Recorder) -> tuple[int, tuple[FrozenLaunch, ...]]:
    """Bytes of workspace and the launches."""
    variant = Variant.from_key(call.variant)
    family, config = families.get(variant.family), families.config_of(variant)
    w = Workload.from_key(call.workload)
    tensors = {name: TensorArg(t[0], t[1:]) for name, t in call.tensors.items()}
    cache = None
    if family.name == "decode" and any(name in tensors for name in CACHE):
        lengths, pages, new_k, new_v = (tensors.pop(n, TensorArg(0)) for n in CACHE)
        cache = CacheArgs(
            lengths.address,
            *(call.added, pages.address, call.page_size, pages.strides[0], new_k, new_v),
        )
    try:
        n_bytes = family.workspace_bytes(config, w, DEVICE)
        args = LaunchArgs(
            tensors,
            diagonal=call.diagonal,
            softmax_scale=call.scale,
            scratch=COUNTERS if family.scratch_bytes(config) else 0,
            workspace=WORKSPACE if n_bytes else 0,
            cache=cache,
        )
        steps = family.launches(config, w, args, DEVICE)
    except InvalidConfig:
        return 0, ()
    return n_bytes, tuple(launched(step, recorder) for step in steps)


def test_what_is_launched_is_what_is_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    monkeypatch.setattr(tensor_maps, "_driver", lambda: recorder)
    tensor_maps._encoded.cache_clear()
    seen: Counter[str] = Counter()
    for call in frozen_calls():
        found = by_python(call, recorder)
        assert found == (call.workspace_bytes, call.launches), call
        seen[call.variant.split(":")[0]] += bool(call.launches)
        seen["refused"] += not call.launches
    tensor_maps._encoded.cache_clear()
    assert seen.total() == 5000
    assert min(seen.values()) > 300
