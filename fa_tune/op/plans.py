"""Which kernel serves which problem on which GPU: chosen at the first problem of a bucket.

Problems that were tuned have kernels of their own; all others share one or two per bucket, see
`fa_tune.store.registry.buckets.representative`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from fa_tune.build.native.core import CoreKernel
from fa_tune.core import arch
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.model import Artifact
from fa_tune.core.workload import Workload
from fa_tune.op.chooser import Choice, Chooser
from fa_tune.store.registry.buckets import representative


def chooser_of(
    device: int,
    registry: Path | str | None = None,
    *,
    cache_dir: Path | None = None,
    repeatable: bool = False,
) -> Chooser:
    """The chooser for a CUDA device; see `Chooser`."""
    properties = torch.cuda.get_device_properties(device)
    limits = arch.limits(
        (properties.major, properties.minor),
        multiprocessors=properties.multi_processor_count,
        gpu=properties.name,
    )
    return Chooser(properties.name, limits, registry, cache_dir=cache_dir, repeatable=repeatable)


def is_capturing() -> bool:
    """Whether torch's current stream is captured in a graph."""
    return torch.version.cuda is not None and bool(torch.cuda.is_current_stream_capturing())


class Plans:
    """Chooses by `choosers` (a CUDA device -> its Chooser) and makes kernels by `load`.  Any
    threads may call it."""

    def __init__(
        self,
        load: Callable[[Artifact], CoreKernel],
        choosers: Callable[[int], Chooser] = chooser_of,
    ) -> None:
        self._load = load
        self._chooser_of = choosers
        self._lock = threading.RLock()
        self._choosers: dict[int, Chooser] = {}
        self._kernels: dict[Artifact, CoreKernel] = {}  # kept: C++ has their addresses

    def anew(self) -> Plans:
        """One that has chosen nothing."""
        return Plans(self._load, self._chooser_of)

    def chooser(self, device: int) -> Chooser:
        with self._lock:
            if device not in self._choosers:
                self._choosers[device] = self._chooser_of(device)
            return self._choosers[device]

    def choice(self, workload: Workload, device: int) -> Choice:
        """What runs a workload on a device, and why; compiled if need be.  Raises
        NoUsableVariant."""
        plain = replace(workload, softmax_scale=None)
        with self._lock:
            chooser = self.chooser(device)
            like = plain if plain in chooser.tuned else representative(plain)
            return chooser.choose(plain, like)

    def kernel(self, workload: Workload, device: int) -> CoreKernel:
        """The kernel of `choice`, loaded on the device.  Raises InvalidConfig while torch captures
        a graph, NoUsableVariant, DriverError."""
        if is_capturing():
            raise InvalidConfig(
                f"no kernel for {workload.key} is loaded, and a graph is being captured: call "
                "fa_tune.op.prepare() for it, or the function itself, before"
            )
        with self._lock:
            choice = self.choice(workload, device)
            kernel = self._kernels.get(choice.artifact)
            if kernel is None:
                kernel = self._kernels[choice.artifact] = self._load(choice.artifact)
            kernel.prepare(device)
            return kernel


MOST_SERVED = 4096  # problems that are remembered one by one


class Memo:
    """`Plans.kernel` remembered, for callers in Python; C++ has a memo of its own.  `cached`: of
    workloads whose K and V are a cache with room for seq_len_kv keys of each sequence; how many
    there are the device alone knows."""

    def __init__(self, plans: Plans, *, cached: bool = False) -> None:
        self._plans = plans
        self._cached = cached
        self._found: dict[tuple[Workload, int], list[CoreKernel]] = {}
        self._served: dict[tuple[Workload, int], CoreKernel] = {}

    def kernel(self, workload: Workload, device: int) -> CoreKernel:
        known = self._served.get((workload, device))
        if known is None:
            if len(self._served) >= MOST_SERVED:
                self._served.clear()
            known = self._served[workload, device] = self._kernel(workload, device)
        return known

    def _kernel(self, workload: Workload, device: int) -> CoreKernel:
        plain = replace(workload, softmax_scale=None)
        requested = replace(plain, cache_lengths="equal") if self._cached else plain
        tuned = requested in self._plans.chooser(device).tuned
        like = requested if tuned else representative(requested)
        served = self._found.setdefault((like, device), [])
        for kernel in served:
            # Of problems in one bucket some are ragged, or have windows as wide as their keys.
            if kernel.plan.has_traits_of(plain):
                return kernel
        served.append(self._plans.kernel(requested, device))
        return served[-1]
