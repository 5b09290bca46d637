"""What GPU is here, asked of NVML: no CUDA context, no torch, a few milliseconds."""

from __future__ import annotations

from fa_tune.errors import ToolMissing
from fa_tune.model import DeviceInfo


def find_device(index: int = 0) -> DeviceInfo | None:
    """The GPU of that index, or None where there is no driver or no GPU at all.

    Raises ToolMissing for an index that does not exist beside GPUs that do.
    """
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        count = pynvml.nvmlDeviceGetCount()
        if count == 0:
            return None
        if not 0 <= index < count:
            raise ToolMissing(f"there is no GPU {index}; this machine has {count}, from 0 on")
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        return DeviceInfo(
            name=_text(pynvml.nvmlDeviceGetName(handle)),
            compute_capability=tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle)),
            driver=_text(pynvml.nvmlSystemGetDriverVersion()),
            memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
            uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
        )
    except pynvml.NVMLError as error:
        raise ToolMissing(f"the NVIDIA driver does not answer: {error}") from None
    finally:
        pynvml.nvmlShutdown()


def cuda_driver_version() -> str:
    """The CUDA version that the driver supports, `13.0`; empty without a driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
        version = int(pynvml.nvmlSystemGetCudaDriverVersion())
        pynvml.nvmlShutdown()
    except Exception:  # without NVML there is nothing to say
        return ""
    return f"{version // 1000}.{version % 1000 // 10}"


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
