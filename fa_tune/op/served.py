"""Calls that a library computes in the place of our kernels, as the registry says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from fa_tune import libraries
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.tensors import workload_of
from fa_tune.core.workload import Workload
from fa_tune.libraries.base import Attend
from fa_tune.op.fallback_warning import tell
from fa_tune.op.plans import MOST_SERVED
from fa_tune.op.traits import Traits
from fa_tune.store.registry.schema import Served


class ServedCalls:
    """The libraries' functions by tensors; `served` gives what a device's registry names."""

    def __init__(self, served: Callable[[int], Mapping[Workload, Served]]) -> None:
        self._of = served
        self._named: dict[int, Mapping[Workload, Served]] = {}
        self._known: dict[tuple[Any, ...], Attend | None] = {}

    def find(self, q: Tensor, k: Tensor, v: Tensor, traits: tuple[Any, ...]) -> Attend | None:
        """What computes O of tensors on a GPU, by traits without tensors; None: our kernels."""
        device = q.device.index
        named = self._named.get(device)
        if named is None:
            named = self._named[device] = self._of(device)
        if not named:
            return None
        strides = q.stride(), k.stride(), v.stride()
        key = (device, q.shape, k.shape, v.shape, q.dtype, strides, traits)
        try:
            return self._known[key]
        except KeyError:
            pass
        if len(self._known) >= MOST_SERVED:
            self._known.clear()
        found = self._known[key] = _attend(named, q, k, v, Traits(*traits))
        return found


def _attend(
    named: Mapping[Workload, Served], q: Tensor, k: Tensor, v: Tensor, traits: Traits
) -> Attend | None:
    if any(t.stride(-1) != 1 or t.device != q.device for t in (q, k, v)):
        return None
    try:
        workload = workload_of(q, k, v, **traits.of_workload)
    except InvalidConfig:
        return None  # as our operator will say
    served = named.get(replace(workload, softmax_scale=None))
    if served is None:
        return None
    try:
        return libraries.get(served.library).attend(workload)
    except InvalidConfig as error:
        tell("attention", str(error), how="is by our own kernels")
        return None
