"""Device and errors of the jobs; errors of the GPU cost the process."""

from __future__ import annotations

import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from fa_tune.build.ptxas_log import first_error
from fa_tune.core.errors import DriverError, InvalidConfig, first_line
from fa_tune.core.jobs import KernelItem
from fa_tune.core.model import Outcome
from fa_tune.gpu.runners import Runner, runner_of
from fa_tune.workers.main import Report

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


def is_cuda_error(error: BaseException) -> bool:
    """Whether an error came from the CUDA driver or runtime, after which the context is lost."""
    import cupy

    kinds = (
        DriverError,
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
        if type(error).__name__ == "CompileException":  # CuPy's, of a user's source
            reason = first_error(str(error)) or first_line(error)
            report.failed(name, Outcome.COMPILE_FAILED, reason)
            return None
        report.failed(name, Outcome.CRASHED, f"{type(error).__name__}: {first_line(error)}")
        return None
    return result if result is not None else True


def check_runners(
    device: int,
    items: Mapping[str, KernelItem],
    report: Report,
    check: Callable[[Runner, str], Any],
    *,
    item_timeout_s: float | None = None,
    kind: Callable[[str], Hashable] = lambda name: None,
) -> None:
    """Load every item's runner on a GPU and report what `check(runner, name of the item)` finds,
    plain data.

    With `item_timeout_s`, items of one `kind` do much the same: the first of them loads libraries
    or computes what must come out, and may take that long.  A later one that takes many times as
    long as those before hangs.
    """
    use_device(device)
    took_by_kind: defaultdict[Hashable, list[float]] = defaultdict(list)
    for name, item in items.items():
        took_s = took_by_kind[kind(name)]
        report.begin(name, deadline_s(item_timeout_s, took_s))
        start = time.monotonic()
        runner = guarded(report, name, partial(runner_of, item))
        if runner is None:
            continue
        found = guarded(report, name, partial(check, runner, name))
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
