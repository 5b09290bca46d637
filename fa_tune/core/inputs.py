"""What Q, K and V hold while a kernel is measured, by name.

How fast a kernel is depends on its data: on how far one key's score is above another's, and on
the order in which a row meets its largest.  So a measurement names its inputs:

    normal        independent standard normal numbers
    peaked:SIGMA  Q scaled so that scores have the standard deviation SIGMA, in nats
    sink          key 0 is 12 nats above what it would be, for every query
    falling:NATS  each block of 128 keys is NATS above the one after it
    far_keys      for every query one of 64 keys, anywhere, is 20 nats above the others
    low_rank      scores of rank 8, with a standard deviation of 3 nats
    temperatures  every head and every query has a standard deviation of its own: `TEMPERATURES`
    trained       heads that differ as those of trained models do: see `HEADS`
    file:PATH     q, k and v of a safetensors file

Kernels visit the blocks of a row from the last to the first.  With `falling` every one of them
has a new maximum.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import StrEnum

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import DType, Workload

DEFAULT_SIGMA = 6.0  # nats; the scores of trained models have up to that
MIN_NATS, MAX_NATS = 0.01, 100.0
RISE = 12.0  # nats by which a sink is above the others
DEFAULT_FALL = 12.0  # nats from one block to the next
FALLING_BLOCK = 128  # keys
FAR_KEYS = 64  # of a head of K and, where batches are packed, of a sequence
FAR_RISE = 20.0  # nats
FAR_NOISE = 0.3  # of the other keys, whose scores have about that standard deviation
RANK = 8
RANK_SIGMA = 3.0  # nats

# Of `temperatures`, in turn over batch and heads: standard deviation of the scores in nats.  That
# of a query is this times a log-normal number with ROW_SPREAD.
TEMPERATURES = (1.0, 6.0, 0.5, 3.0, 0.25, 8.0, 2.0, 4.0)
ROW_SPREAD = 0.5

# Of `trained`, in turn over batch and heads: standard deviation of the scores in nats, and whether
# key 0 is a sink.
HEADS: tuple[tuple[float, bool], ...] = (
    (3.0, True),
    (1.0, False),
    (4.5, False),
    (2.0, True),
    (6.0, False),
    (3.0, False),
    (1.0, True),
    (2.0, False),
)


class Kind(StrEnum):
    """The word that a text form begins with."""

    NORMAL = "normal"
    PEAKED = "peaked"
    SINK = "sink"
    FALLING = "falling"
    FAR_KEYS = "far_keys"
    LOW_RANK = "low_rank"
    TEMPERATURES = "temperatures"
    TRAINED = "trained"
    FILE = "file"


# What a number after the word is if there is none: nats, by the kinds that take one.
USUAL_NATS = {Kind.PEAKED: DEFAULT_SIGMA, Kind.FALLING: DEFAULT_FALL}


@dataclass(frozen=True)
class InputSpec:
    """What the inputs are drawn from.  `nats` belongs to those of USUAL_NATS, `path` to FILE."""

    kind: Kind
    nats: float = 0.0
    path: str = ""

    def __post_init__(self) -> None:
        if self.kind in USUAL_NATS and not MIN_NATS <= self.nats <= MAX_NATS:
            raise InvalidConfig(
                f"{self.kind} takes {MIN_NATS:g} to {MAX_NATS:g} nats, not {self.nats:g}"
            )
        if self.kind is Kind.FILE and not self.path:
            raise InvalidConfig("file: needs a path after it, like file:qkv.safetensors")
        if (self.nats and self.kind not in USUAL_NATS) or (
            self.path and self.kind is not Kind.FILE
        ):
            raise InvalidConfig(f"{self.kind} takes nothing after it")

    def __str__(self) -> str:
        """The text form, which `parse` reads."""
        if self.kind is Kind.FILE:
            return f"{self.kind}:{self.path}"
        if self.nats != USUAL_NATS.get(self.kind, 0.0):
            return f"{self.kind}:{self.nats!r}".removesuffix(".0")
        return str(self.kind)

    @classmethod
    def parse(cls, text: str) -> InputSpec:
        """The inputs of a text form; raises InvalidConfig.  A path stays as it is written."""
        word, colon, rest = text.strip().partition(":")
        try:
            kind = Kind(word.strip().lower())
        except ValueError:
            raise InvalidConfig(
                f"{text[:60]!r} names no inputs; known are {', '.join(NAMES)}"
            ) from None
        if kind is Kind.FILE:
            return cls(kind, path=rest)
        if kind in USUAL_NATS:
            return cls(kind, nats=_nats(kind, rest) if colon else USUAL_NATS[kind])
        if colon:
            raise InvalidConfig(f"{kind} takes nothing after it, not {rest[:40]!r}")
        return cls(kind)

    def check(self, workload: Workload) -> None:
        """Raise InvalidConfig if the workload's dtype cannot hold such inputs, because of its
        softmax scale.  A file is checked by `core.input_files`."""
        needed = self._largest_product(workload)
        room = 2.0**18 if workload.dtype is DType.FP16 else 2.0**60
        if not 1.0 / room <= needed <= room:
            raise InvalidConfig(
                f"{self} inputs cannot be made for the softmax scale {workload.scale:g} in "
                f"{workload.dtype.name}"
            )

    def _largest_product(self, workload: Workload) -> float:
        """The largest product of an element of Q and one of K that is needed beside noise."""
        if self.kind in (Kind.NORMAL, Kind.FILE):
            return 1.0
        if self.kind is Kind.PEAKED:
            return self.nats / (workload.scale * math.sqrt(workload.d_head))
        return (self.nats or RISE) / workload.scale


def _nats(kind: Kind, text: str) -> float:
    if not re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*", text):
        raise InvalidConfig(f"{kind}:{text[:40]} needs a number of nats, like {kind}:3")
    return float(text)


_AFTER = {Kind.PEAKED: ":SIGMA", Kind.FALLING: ":NATS", Kind.FILE: ":PATH"}
NAMES = tuple(f"{kind}{_AFTER.get(kind, '')}" for kind in Kind)
NORMAL = InputSpec(Kind.NORMAL)
TRAINED = InputSpec(Kind.TRAINED)
DEFAULT = TRAINED  # what a search chooses on
# On all of these a choice is compared with the default.
BUILT_IN = (
    TRAINED,
    NORMAL,
    InputSpec(Kind.PEAKED, DEFAULT_SIGMA),
    InputSpec(Kind.PEAKED, 12.0),
    InputSpec(Kind.SINK),
    InputSpec(Kind.FALLING, DEFAULT_FALL),
    InputSpec(Kind.FALLING, 6.0),
    InputSpec(Kind.FAR_KEYS),
    InputSpec(Kind.LOW_RANK),
    InputSpec(Kind.TEMPERATURES),
)
