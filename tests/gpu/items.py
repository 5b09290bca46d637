"""Items of the tests' own jobs: mappings of `subject`, `cubin`, `symbols` and what a test adds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fa_tune.core.jobs import KernelItem
from fa_tune.gpu import kernels
from fa_tune.gpu.launch import Kernel
from fa_tune.workers.main import Report


def kernel_item(item: Mapping[str, Any]) -> KernelItem:
    """The part of an item that says where its kernel is."""
    first, *more = item["symbols"]
    return KernelItem(item["subject"], item["cubin"], first, tuple(more))


def load(item: Mapping[str, Any]) -> Kernel:
    """The kernel of an item."""
    return kernels.load(kernel_item(item))


def check_kernels(
    shared: Mapping[str, Any],
    items: Mapping[str, Any],
    report: Report,
    check: Callable[[Kernel, Mapping[str, Any]], Any],
) -> None:
    """Report what `check(kernel, item)` finds for every item, on GPU `shared["device"]`."""
    kernels.check_kernels(
        int(shared["device"]),
        {name: kernel_item(item) for name, item in items.items()},
        report,
        lambda kernel, name: check(kernel, items[name]),
    )
