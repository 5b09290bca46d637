"""What the jobs share: kernels from job items, launch arguments, sticky CUDA errors."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.jobs import KernelItem
from fa_tune.core.model import Outcome, Variant, is_reference, reference_name
from fa_tune.core.reference_kernels import BARE_READ
from fa_tune.core.workload import Workload
from fa_tune.families.launch import CacheArgs, LaunchArgs, TensorArg
from fa_tune.gpu.bare_read import bare_read
from fa_tune.gpu.launch import Kernel
from fa_tune.gpu.libraries import library_call
from fa_tune.gpu.reference import E4M3, Inputs
from fa_tune.operations.forward.spec import keys_seen
from fa_tune.workers.main import Report

Launch = Callable[[], None]

HANG_TIMES = 10.0  # what takes this many times as long as the items before it hangs,
HANG_LEAST_S = 5.0  # though not before this long


def use_device(index: int) -> None:
    """Make a GPU current for torch and CuPy, and fp32 products really fp32."""
    import cupy

    torch.cuda.set_device(index)
    cupy.cuda.Device(index).use()
    torch.backends.cuda.matmul.allow_tf32 = False


def nvml_handle(index: int) -> Any:
    """NVML's handle of CUDA's device `index`.  CUDA_VISIBLE_DEVICES renumbers devices for CUDA
    alone, so it is found by its UUID, and by its number only where NVML has none such.

    Raises what importing or asking NVML raises.
    """
    import pynvml

    pynvml.nvmlInit()
    uuid = torch.cuda.get_device_properties(index).uuid
    try:
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except pynvml.NVMLError:
        if "CUDA_VISIBLE_DEVICES" in os.environ:  # numbered anew: it could be another GPU
            raise
        return pynvml.nvmlDeviceGetHandleByIndex(index)


def load(item: KernelItem) -> Kernel:
    """The kernel of a job item."""
    return Kernel(Variant.from_key(item.subject), item.cubin, item.symbol, *item.more_symbols)


def named_args(tensors: Mapping[str, torch.Tensor]) -> LaunchArgs:
    """The launch arguments of a workload whose tensors have these names: views of any strides with
    four dimensions, [batch, heads], and other contiguous ones."""

    def argument(name: str, tensor: torch.Tensor) -> TensorArg:
        if tensor.ndim == 4:
            if tensor.dtype == E4M3:  # pairs of numbers are elements
                tensor = tensor.view(torch.int16)
            return TensorArg.of(tensor, name.upper())
        if tensor.ndim == 2:
            return TensorArg(tensor.data_ptr(), (tensor.stride(0), tensor.stride(1), 0))
        return TensorArg(tensor.data_ptr())

    cache = _cache_of(tensors)
    return LaunchArgs({n: argument(n, t) for n, t in tensors.items()}, cache=cache)


def _cache_of(tensors: Mapping[str, torch.Tensor]) -> CacheArgs | None:
    """What launches are told of a cache, if there is one."""
    if (lengths := tensors.get("cache_seqlens")) is None:
        return None
    if (table := tensors.get("page_table")) is None:
        return CacheArgs(lengths.data_ptr())
    return CacheArgs(
        lengths.data_ptr(),
        pages=table.data_ptr(),
        page_size=tensors["k"].shape[1],
        page_stride=table.stride(0),
    )


def launch_args(inputs: Inputs, out: torch.Tensor, lse: torch.Tensor | None = None) -> LaunchArgs:
    """The launch arguments of a forward pass; `lse` is fp32 [batch, heads, seq_len_q]."""
    tensors = {**inputs.tensors, "o": out}
    return named_args(tensors if lse is None else {**tensors, "lse": lse})


def output_for(inputs: Inputs) -> torch.Tensor:
    """Room for O."""
    return inputs.q.new_empty((*inputs.q.shape[:3], inputs.v.shape[3]))


def lse_for(workload: Workload, fill: float | None = None) -> torch.Tensor | None:
    """Room for the log-sum-exp of a workload that wants it, filled if asked; else None."""
    if not workload.lse:
        return None
    batch, rows, _ = workload.rows
    lse = torch.empty(batch, workload.heads, rows, device="cuda")
    return lse if fill is None else lse.fill_(fill)


@dataclass(frozen=True)
class Problem:
    """A workload with its buffers: one or several inputs, and one output for all of them."""

    workload: Workload
    inputs: Sequence[Inputs]
    out: torch.Tensor
    lse: torch.Tensor | None

    @classmethod
    def of(cls, workload: Workload, inputs: Sequence[Inputs]) -> Problem:
        """That of inputs, with room for the output."""
        return cls(workload, inputs, output_for(inputs[0]), lse_for(workload))


def launchers(item: KernelItem, problem: Problem) -> list[Launch]:
    """For each of the problem's inputs a call that enqueues one launch of the item on torch's
    current stream: a variant's kernel, a library reference (`ref:fa2`), whose own output is
    dropped, or a bare read of K and V.

    A variant's kernel is one for all inputs: its workspace is there after the first launch, so that
    a graph may hold the others.  Raises InvalidConfig for a workload that the library has no call
    for.
    """
    if is_reference(item.subject):
        return [_reference_launch(item.subject, problem.workload, one) for one in problem.inputs]
    kernel = load(item)

    def call(args: LaunchArgs) -> None:
        kernel.launch(problem.workload, args, torch.cuda.current_stream().cuda_stream)

    return [partial(call, launch_args(one, problem.out, problem.lse)) for one in problem.inputs]


def _reference_launch(subject: str, workload: Workload, inputs: Inputs) -> Launch:
    name = reference_name(subject)
    if name == BARE_READ:
        return bare_read((inputs.k, inputs.v), keys_seen(workload) * workload.kv_heads)
    call = library_call(name, inputs, workload)

    def launch() -> None:
        call()  # its output is dropped

    return launch


def is_cuda_error(error: BaseException) -> bool:
    """Whether an error came from the CUDA driver or runtime, after which the context is lost."""
    import cupy

    kinds = (
        cupy.cuda.driver.CUDADriverError,
        cupy.cuda.runtime.CUDARuntimeError,
        getattr(torch, "AcceleratorError", ()),
    )
    return isinstance(error, tuple(k for k in kinds if k)) or "CUDA error" in str(error)


def guarded(report: Report, name: str, action: Callable[[], Any]) -> Any | None:
    """Run `action` for an item.  A refusal costs the item (None is returned); an error of the
    GPU costs the process, since nothing that follows in its context means anything."""
    try:
        result = action()
        torch.cuda.synchronize()
    except torch.OutOfMemoryError as error:
        report.failed(name, Outcome.CRASHED, f"out of GPU memory: {first_line(error)}")
        torch.cuda.empty_cache()
        return None
    except InvalidConfig as error:
        report.failed(name, Outcome.REJECTED, str(error))
        return None
    except Exception as error:
        if is_cuda_error(error):
            report.sticky_error(name, first_line(error))
        report.failed(name, Outcome.CRASHED, f"{type(error).__name__}: {first_line(error)}")
        return None
    return result if result is not None else True


def check_kernels(
    device: int,
    items: Mapping[str, KernelItem],
    report: Report,
    check: Callable[[Kernel, str], Any],
    *,
    item_timeout_s: float | None = None,
) -> None:
    """Load every item's kernel on a GPU and report what `check(kernel, name of the item)` finds,
    plain data.

    With `item_timeout_s`, the items do much the same: the first loads libraries and may take that
    long, and a later one that takes many times as long as those before hangs.
    """
    use_device(device)
    took_s: list[float] = []
    for name, item in items.items():
        report.begin(name, deadline_s(item_timeout_s, took_s))
        start = time.monotonic()
        kernel = guarded(report, name, partial(load, item))
        if kernel is None:
            continue
        found = guarded(report, name, partial(check, kernel, name))
        took_s.append(time.monotonic() - start)
        if found is not None:
            report.done(name, found)


def deadline_s(limit_s: float | None, took_s: Sequence[float]) -> float | None:
    """How long an item may take after others that took so long: many times their median (the
    first loads libraries), where nothing may take longer than `limit_s` (None: items are not
    alike, and the supervisor's own limit holds for each)."""
    if limit_s is None or not took_s:
        return limit_s
    return min(limit_s, max(HANG_LEAST_S, HANG_TIMES * statistics.median_low(took_s)))


def first_line(error: BaseException) -> str:
    """The first line of an error's text."""
    return (str(error).splitlines() or [type(error).__name__])[0]
