"""Element types of tensors: the one table.  The C++ core's (`csrc/core/dtypes.h`) is generated from
it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class ElementType:
    """A type of numbers.  `number` is that of torch's ScalarType, `tma_code` the driver's
    CUtensorMapDataType; of floating-point types `epsilon` is the unit in the last place of 1 and
    `smallest_exponent` that of a normal number."""

    name: str
    number: int
    size_bytes: int
    torch_name: str
    tma_code: int
    epsilon: float = 0.0
    smallest_exponent: int = 0

    @property
    def word(self) -> str:
        """The name in keys and options."""
        return self.name.lower()

    def to_torch_dtype(self) -> torch.dtype:
        """The torch dtype; imports torch."""
        import torch

        found: torch.dtype = getattr(torch, self.torch_name)
        return found

    def unit_in_the_last_place(self, value: float) -> float:
        """The distance of `value` to the next number of the type; that of its smallest normal
        number for what is smaller, and NaN or infinite for what is."""
        if not math.isfinite(value):
            return abs(value)
        exponent = math.frexp(value)[1] - 1 if value else self.smallest_exponent
        return self.epsilon * 2.0 ** max(exponent, self.smallest_exponent)


INT32 = ElementType("INT32", 3, 4, "int32", 3)
FP16 = ElementType("FP16", 5, 2, "float16", 6, 2.0**-10, -14)
FP32 = ElementType("FP32", 6, 4, "float32", 7, 2.0**-23, -126)
BF16 = ElementType("BF16", 15, 2, "bfloat16", 9, 2.0**-7, -126)
E4M3 = ElementType("E4M3", 24, 1, "float8_e4m3fn", 0, 2.0**-3, -6)
ALL = {one.name: one for one in (INT32, FP16, FP32, BF16, E4M3)}
