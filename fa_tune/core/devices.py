"""What GPUs are here, asked of NVML: no CUDA context, no torch, a few milliseconds.

NVML sees every GPU of the machine, in the order of their slots; CUDA sees those that
CUDA_VISIBLE_DEVICES names, numbered by their order in it.  Numbers here are places in that list,
or without one slots, as nvidia-smi counts; CUDA itself may count GPUs of different models
otherwise.  So what is passed on is the GPU's UUID, which means the same to all.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, Literal

from fa_tune.core.arch import DEFAULT_ARCH, ArchLimits, limits, parse_arch
from fa_tune.core.errors import InvalidConfig, ToolMissing
from fa_tune.core.model import DeviceInfo

VISIBLE = "CUDA_VISIBLE_DEVICES"
ALL: Final = "all"  # in place of numbers: every visible GPU
Numbers = tuple[int, ...] | Literal["all"]


def pinned_to(uuid: str) -> dict[str, str]:
    """The environment in which a process sees that GPU alone, as its number 0; nothing for an
    unknown one."""
    return {VISIBLE: uuid} if uuid else {}


def visible_devices() -> tuple[DeviceInfo, ...]:
    """The GPUs that CUDA sees, in its order; none without a driver or a GPU.

    Raises ToolMissing for a driver that does not answer.
    """
    with _nvml() as nvml:
        return tuple(_describe(nvml, h) for h in _visible_handles(nvml)) if nvml else ()


def find_device(index: int = 0) -> DeviceInfo | None:
    """The GPU that CUDA counts as `index`, or None where there is no driver or no GPU at all.

    Raises ToolMissing for an index that does not exist beside GPUs that do.
    """
    with _nvml() as nvml:
        handles = _visible_handles(nvml) if nvml else []
        return _describe(nvml, _at(handles, index)) if handles else None


def find_devices(numbers: Numbers) -> tuple[DeviceInfo, ...]:
    """Several GPUs of one model, by number, or every visible one; none where there is no driver or
    no GPU at all.

    Raises ToolMissing where one is not there, InvalidConfig for one named twice or for GPUs
    of different models, whose results are not each other's.
    """
    if numbers != ALL:
        twice = next((n for n in numbers if numbers.count(n) > 1), None)
        if twice is not None:
            raise InvalidConfig(f"GPU {twice} is named twice; name each GPU once")
    with _nvml() as nvml:
        handles = _visible_handles(nvml) if nvml else []
        if not handles:
            return ()
        chosen = range(len(handles)) if numbers == ALL else numbers
        found = [_describe(nvml, _at(handles, n)) for n in chosen]
    same_model(found, [f"GPU {n}" for n in chosen])
    return tuple(found)


def same_model(gpus: Sequence[DeviceInfo], labels: Sequence[str]) -> None:
    """Raise InvalidConfig for GPUs of different models."""
    first = gpus[0]
    for gpu, label in zip(gpus, labels, strict=True):
        if (gpu.name, gpu.compute_capability) != (first.name, first.compute_capability):
            raise InvalidConfig(
                f"{labels[0]} is an {first.name} and {label} an {gpu.name}: results of one "
                "model are not the other's; name GPUs of one model at a time"
            )


def limits_of(device: DeviceInfo) -> ArchLimits:
    """Those of its compute capability, with its own number of multiprocessors and memory; raises
    InvalidConfig for a compute capability that is not in the table."""
    return limits(
        device.compute_capability, multiprocessors=device.multiprocessors, gpu=device.name
    )


def limits_for(arch: str | None, device: DeviceInfo | None) -> ArchLimits:
    """Those of the architecture asked for, of the device, or of the default architecture; raises
    InvalidConfig for a text that names none."""
    asked = None if arch is None else parse_arch(arch)
    if device is not None and (
        asked is None or asked.compute_capability == device.compute_capability
    ):
        return limits_of(device)
    return asked or parse_arch(DEFAULT_ARCH)


def cuda_driver_version() -> str:
    """The CUDA version that the driver supports, `13.0`; empty without a driver."""
    with suppress(ToolMissing), _nvml() as nvml:
        if nvml:
            version = int(nvml.nvmlSystemGetCudaDriverVersion())
            return f"{version // 1000}.{version % 1000 // 10}"
    return ""


@contextmanager
def _nvml() -> Iterator[Any]:
    """NVML, ready to be asked; None without it.  Its errors become ToolMissing."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # not installed, or no driver
        yield None
        return
    try:
        yield pynvml
    except pynvml.NVMLError as error:
        raise ToolMissing(f"the NVIDIA driver does not answer: {error}") from None
    finally:
        pynvml.nvmlShutdown()


@contextmanager
def kept_ready() -> Iterator[None]:
    """Within it, the driver keeps the GPUs ready: where nothing else does, it would shut them down
    whenever the last process that uses one has ended, and begin anew for the next."""
    with _nvml():
        yield


def _visible_handles(nvml: Any) -> list[Any]:
    """NVML's handles in CUDA's order: all, or those of CUDA_VISIBLE_DEVICES up to the first
    word that means none of them, as CUDA reads it."""
    handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    visible = os.environ.get(VISIBLE)
    if visible is None:
        return handles
    uuids = [_text(nvml.nvmlDeviceGetUUID(h)) for h in handles]
    found: list[Any] = []
    taken: set[str] = set()
    for word in (w.strip() for w in visible.split(",")):
        if word.startswith("MIG-"):
            try:
                handle, name = nvml.nvmlDeviceGetHandleByUUID(word), word
            except nvml.NVMLError:
                break
        else:
            matching = [i for i, uuid in enumerate(uuids) if len(word) > 4 and _begins(uuid, word)]
            if word.isdecimal() and int(word) < len(handles):
                matching = [int(word)]
            if len(matching) != 1:
                break
            handle, name = handles[matching[0]], uuids[matching[0]]
        if name in taken:
            break
        taken.add(name)
        found.append(handle)
    return found


def _begins(uuid: str, word: str) -> bool:
    """Whether a word is a UUID or its beginning; CUDA takes `GPU-1a2b` for the only such."""
    return word.startswith("GPU-") and uuid.lower().startswith(word.lower())


def _at(handles: Sequence[Any], index: int) -> Any:
    if 0 <= index < len(handles):
        return handles[index]
    n = len(handles)
    if VISIBLE in os.environ:
        raise ToolMissing(f"there is no GPU {index}: {VISIBLE} leaves {n}, from 0 on")
    raise ToolMissing(f"there is no GPU {index}; this machine has {n}, from 0 on")


def _describe(nvml: Any, handle: Any) -> DeviceInfo:
    compute_capability = tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle))
    return DeviceInfo(
        name=_text(nvml.nvmlDeviceGetName(handle)),
        compute_capability=compute_capability,
        driver=_text(nvml.nvmlSystemGetDriverVersion()),
        memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        multiprocessors=_multiprocessors(nvml, handle, compute_capability),
    )


def _multiprocessors(nvml: Any, handle: Any, compute_capability: tuple[int, int]) -> int | None:
    """NVML counts them for a part of a GPU (MIG) alone, and the cores of a whole one.  None where
    it does not, or where nobody knows how many cores a multiprocessor has."""
    with suppress(nvml.NVMLError):
        return int(nvml.nvmlDeviceGetAttributes(handle).multiprocessorCount)
    with suppress(nvml.NVMLError, InvalidConfig):
        cores = int(nvml.nvmlDeviceGetNumGpuCores(handle))
        return cores // limits(compute_capability).cores or None
    return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
