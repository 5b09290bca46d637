"""What is behind the operators in this process: C++ if torch has a place for it, else Python, and
Python for score hooks; and the choices made so far."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fa_tune.build.native.core import Core, CoreKernel, KernelImage
from fa_tune.core.errors import DriverError, StorageError, ToolMissing
from fa_tune.core.model import Artifact
from fa_tune.core.workload import Workload
from fa_tune.libraries.base import Attend
from fa_tune.op import backward
from fa_tune.op.cache_launches import CacheLaunches
from fa_tune.op.library import FORWARD, HOOKED, LIBRARY, N_DONE, N_LENGTHS, N_TRAITS
from fa_tune.op.native import NativeOp
from fa_tune.op.operands import Done, Gradients, Lengths
from fa_tune.op.own_backward import OwnBackward
from fa_tune.op.plans import Memo, Plans, chooser_of
from fa_tune.op.python_op import PythonOp
from fa_tune.op.served import ServedCalls
from fa_tune.op.traits import Traits

_FORKED = (
    "this process was forked from one that had used CUDA, which does not work in a child; start "
    "children by the method 'spawn' of multiprocessing"
)


class Operators:
    """The operators' implementation for a dispatch key; `cache_dir` None: the user's own.

    `native` is None where they are in Python, and `why_python` says why.  Launches are the core's.
    """

    def __init__(self, dispatch_key: str = "CUDA", cache_dir: Path | None = None) -> None:
        self.native: NativeOp | None = None
        self.refusal = ""  # why no call can be made
        self.why_python = ""
        self._core: Core | None = None
        try:
            self.native = NativeOp(cache_dir)
            self._core = self.native.core
        except (ToolMissing, StorageError) as error:
            self.why_python = str(error)
        self._cache_dir = cache_dir
        self._former: list[tuple[Plans, Memo]] = []  # whose kernels cannot be unloaded
        self.plans = Plans(self.load)
        self._start()
        if self.native is not None:
            self.native.start(
                self._handle, lambda device: self.plans.chooser(device).tuned, dispatch_key
            )
        op = PythonOp(lambda workload, device: self._memo.kernel(workload, device))
        for name in FORWARD if self.native is None else HOOKED:
            LIBRARY.impl(name, partial(op, name), dispatch_key)

    def _start(self) -> None:
        self._memo = Memo(self.plans)
        self._repeatable = Memo(Plans(self.load, partial(chooser_of, repeatable=True)))
        self._with_cache = Memo(self.plans, cached=True)
        self.cache_launches = CacheLaunches()
        self.served = ServedCalls(lambda device: self.plans.chooser(device).served)
        self.backward = OwnBackward(self._backward_kernel, native=self.native is not None)

    def _backward_kernel(self, workload: Workload, device: int, repeatable: bool) -> CoreKernel:
        memo = self._repeatable if repeatable else self._memo
        return memo.kernel(workload, device)

    def load(self, artifact: Artifact) -> CoreKernel:
        """A kernel to launch.  Raises ToolMissing without the core."""
        if self._core is None:
            self._core = Core(cache_dir=self._cache_dir)
        return self._core.kernel(KernelImage.of(artifact))

    def kernel_with_cache(self, workload: Workload, device: int) -> CoreKernel:
        """A kernel whose launches take lengths and pages that the GPU alone knows, loaded.  Raises
        as a call would."""
        return self._with_cache.kernel(workload, device)

    def _handle(self, workload: Workload, device: int) -> int:
        return self.plans.kernel(workload, device).handle

    def prepare(self, workload: Workload, device: int) -> None:
        """Choose, compile and load what runs a workload.  Raises as a call would."""
        if workload.cached:
            # Lengths and pages are the launch's: one kernel serves all.
            self.kernel_with_cache(replace(workload, cache_lengths="", page_size=0), device)
        elif self.native is not None and workload.score_hook is None:
            self.native.prepare(workload, device)
        else:
            self._memo.kernel(workload, device)

    def forget(self) -> None:
        """Choose anew from now on: in a forked child, where locks may be held for ever and nothing
        that the parent loaded is of use."""
        self._former.append((self.plans, self._repeatable))
        self.plans = self.plans.anew()
        self._start()
        self.refusal = _FORKED if torch.cuda._is_in_bad_fork() else ""
        if self.native is not None:
            self.native.forget(self.refusal and f"{DriverError.__name__}: {self.refusal}")


def bwd(*given: Any) -> Gradients:
    """fa_tune::bwd on a GPU."""
    done, (traits, slopes_grad) = Done(*given[:N_DONE]), _parted(given[N_DONE:])
    own = None if slopes_grad else own_gradients(done, traits)
    return backward.gradients(done, traits) if own is None else (*own, _no_slopes(done, traits))


def _parted(given: Any) -> tuple[Traits, bool]:
    """The traits, and whether the gradient of slopes is wanted."""
    traits = Traits(*given[:N_TRAITS])
    return traits, traits.alibi_slopes is not None and all(given[N_TRAITS:])


def _no_slopes(done: Done, traits: Traits) -> torch.Tensor:
    """In the place of their gradient, where nobody wants it."""
    slopes = traits.alibi_slopes
    return backward.no_slopes(done) if slopes is None else torch.zeros_like(slopes)


def own_gradients(
    done: Done, traits: Traits, lengths: Lengths | None = None
) -> backward.Three | None:
    """By a kernel of our own, of a packed batch with `lengths`; None where torch's passes serve."""
    if _operators is None or not done.q.is_cuda:
        return None
    return operators().backward.gradients(done, traits, lengths)


def attend_of(q: Tensor, k: Tensor, v: Tensor, traits: tuple[Any, ...]) -> Attend | None:
    """The library's function for tensors and traits, of which none is a tensor; None where our
    kernels run, as in compiled graphs."""
    if torch.compiler.is_compiling() or _operators is None or not q.is_cuda:
        return None
    return operators().served.find(q, k, v, traits)


def packed_bwd(*given: Any) -> Gradients:
    """fa_tune::packed_bwd on a GPU."""
    done, others = Done(*given[:N_DONE]), given[N_DONE:]
    lengths, (traits, slopes_grad) = Lengths(*others[:N_LENGTHS]), _parted(others[N_LENGTHS:])
    own = None if slopes_grad else own_gradients(done, traits, lengths)
    if own is None:
        return backward.packed_gradients(done, lengths, traits)
    return *own, _no_slopes(done, traits)


def operators() -> Operators:
    """The operators of this process.  Raises ToolMissing for a torch without CUDA, DriverError in a
    child that was forked from a process that had used CUDA."""
    if _operators is None:
        raise ToolMissing("this torch was built without CUDA")
    if _operators.refusal:
        raise DriverError(_operators.refusal)
    return _operators


_operators: Operators | None = None
if torch.version.cuda is not None:
    _operators = Operators()
    LIBRARY.impl("bwd", bwd, "CUDA")
    LIBRARY.impl("packed_bwd", packed_bwd, "CUDA")
    os.register_at_fork(after_in_child=_operators.forget)
