"""How near a kernel is to the memory's speed, where that is its limit."""

from __future__ import annotations

from dataclasses import dataclass

from fa_tune.core import units
from fa_tune.core.roofline import ROOFS
from fa_tune.core.workload import Workload
from fa_tune.operations import flops

# Operations per byte below which memory may be the limit: an A100 does 156 at its peak rates, an
# H200 206.
BOUND_BY_MEMORY = 150


@dataclass(frozen=True)
class MemoryRate:
    """What crosses between memory and the chip if everything crosses once, in a second.  `of_peak`:
    as a share of what the GPU's maker states, None for a GPU that `ROOFS` does not have;
    `of_read`: the time of a bare read of K and V over the kernel's, None where none was
    measured."""

    bytes_per_s: float
    of_peak: float | None
    of_read: float | None

    @property
    def sentence(self) -> str:
        """For a reader."""
        text = f"It moves {units.format_bytes_per_second(self.bytes_per_s)}"
        shares = []
        if self.of_peak is not None:
            shares.append(f"{100 * self.of_peak:.0f} % of the memory's peak")
        if self.of_read is not None:
            shares.append(f"{100 * self.of_read:.0f} % of the speed of a bare read of K and V")
        return f"{text}, {' and '.join(shares)}." if shares else f"{text}."


def memory_rate(
    workload: Workload, seconds: float, gpu: str = "", of_read: float | None = None
) -> MemoryRate | None:
    """That of a launch that takes so long on a GPU, called as its driver does; None where there are
    so many operations for each byte that it says nothing."""
    moved = flops.moved_bytes(workload)
    if flops.matmul_flop(workload) > BOUND_BY_MEMORY * moved:
        return None
    roof = ROOFS.get(gpu)
    rate = moved / seconds
    return MemoryRate(rate, None if roof is None else rate / roof.bytes_per_s, of_read)
