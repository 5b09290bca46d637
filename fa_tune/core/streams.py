"""CuPy on streams that others made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class _Foreign:
    """A stream by its handle, as CUDA's stream protocol has it: torch's own streams follow it from
    2.10 on, and some callers have no more than a handle."""

    handle: int

    def __cuda_stream__(self) -> tuple[int, int]:
        """The protocol's version, and the handle."""
        return 0, self.handle


def stream_of(handle: int) -> Any:
    """A CUDA stream as CuPy's: `with stream_of(handle)` makes it CuPy's current one.  It lives no
    longer than its owner keeps it."""
    import cupy  # hook_twin may never ask for one

    stream = cupy.cuda.Stream
    if hasattr(stream, "from_external"):  # CuPy 14, which warns of the other
        return stream.from_external(_Foreign(handle))
    return cupy.cuda.ExternalStream(handle)
