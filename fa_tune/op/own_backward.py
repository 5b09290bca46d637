"""Gradients by the kernels of the operation `backward`, where there are any for a problem."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch

from fa_tune import families
from fa_tune.build.native.call import problem_of, tensors_of
from fa_tune.build.native.core import CoreKernel
from fa_tune.core import arch
from fa_tune.core.errors import NoUsableVariant
from fa_tune.core.tensors import is_expanded, workload_of
from fa_tune.core.workload import BACKWARD, Workload
from fa_tune.op.backward import Three
from fa_tune.op.operands import HALF, Done, has_whole_rows
from fa_tune.op.plans import is_capturing
from fa_tune.op.python_op import launch
from fa_tune.op.traits import Traits

# A kernel for a workload on a device; `repeatable`: one that gives the same bits always.
Kernels = Callable[[Workload, int, bool], CoreKernel]


class OwnBackward:
    """Those passes that `kernels` has kernels for."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._found: dict[tuple[Workload, int, bool], CoreKernel | None] = {}

    def gradients(self, done: Done, traits: Traits) -> Three | None:
        """dQ, dK and dV, contiguous; None where torch's passes serve: of tensors or traits that no
        kernel takes, and in a graph's capture of what was not run before it."""
        if not _takes(done, traits):
            return None
        q, k, v = done.q, done.k, done.v
        workload = workload_of(q, k, v, op=BACKWARD, **traits.of_workload)
        kernel = self._kernel(workload, q.device.index)
        if kernel is None:
            return None
        grad_out, out = (
            t if has_whole_rows(t) and not is_expanded(t) else t.contiguous()
            for t in (done.grad_out, done.out)
        )
        dq, dk, dv = (torch.empty_like(t, memory_format=torch.contiguous_format) for t in (q, k, v))
        given = {"q": q, "k": k, "v": v, "o": out, "do": grad_out, "lse": done.lse.contiguous()}
        tensors = tensors_of({**given, "dq": dq, "dk": dk, "dv": dv})
        launch(kernel, problem_of(workload), tensors, q.device.index)
        return dq, dk, dv

    def _kernel(self, workload: Workload, device: int) -> CoreKernel | None:
        key = (workload, device, torch.are_deterministic_algorithms_enabled())
        if key not in self._found:
            if is_capturing():
                return None
            self._found[key] = self._made(*key)
        return self._found[key]

    def _made(self, workload: Workload, device: int, repeatable: bool) -> CoreKernel | None:
        if not families.runnable(_limits(device), BACKWARD, workloads=[workload]):
            return None
        try:
            return self._kernels(workload, device, repeatable)
        except NoUsableVariant:
            return None


def _takes(done: Done, traits: Traits) -> bool:
    """Whether there may be a kernel for such tensors.  A gradient of the log-sum-exp has no place
    in any."""
    three = (done.q, done.k, done.v)
    return (
        done.grad_lse is None
        and traits.masks_only
        and done.q.dtype in HALF
        and all(map(has_whole_rows, three))
        and not any(0 in t.shape for t in three)
    )


@cache
def _limits(device: int) -> arch.ArchLimits:
    return arch.limits(torch.cuda.get_device_capability(device))
