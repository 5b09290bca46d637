"""What became of a search's choice afterwards: against the default, and on other inputs."""

from __future__ import annotations

from dataclasses import dataclass

from fa_tune.core.stats import Ratio

LIMIT = 0.02  # more time than the default's, on any inputs, that a choice may take


@dataclass(frozen=True)
class OnInputs:
    """One config on one kind of inputs: its median in seconds, and its time over the default's
    beside it; None for the default itself, or without one.  `to_own_inputs`: its time over that on
    the inputs of the search, of samples paired within rounds; 1 on these, None where it is not
    known so.  Medians of two kinds of inputs were taken at two moments, and perhaps clocks.
    `error`: its root mean square error over FlashAttention 2's; None where that has none."""

    inputs: str
    median_s: float
    to_default: Ratio | None
    to_own_inputs: float | None = None
    error: float | None = None

    @property
    def is_behind(self) -> bool:
        """Whether it is further behind the default than a choice may be."""
        return self.to_default is not None and self.to_default.value > 1.0 + LIMIT


@dataclass(frozen=True)
class Confirmation:
    """The choice of a search against the default, both by their keys, measured independently of it
    in `n` pairs; `ratio` is chosen / default, below 1 = the chosen one is faster."""

    chosen: str
    default: str
    ratio: Ratio
    n: int

    @property
    def upheld(self) -> bool:
        """Whether the choice stands.  It was made for a gain of more than the margin; what
        contradicts it is none at all, and not by chance: a GPU that is at rest shows less of
        a gain than one at its power limit."""
        interval = self.ratio.interval
        return self.ratio.value < 1.0 or (interval is not None and interval.low < 1.0)

    @property
    def left(self) -> str:
        """The one that it leaves chosen."""
        return self.chosen if self.upheld else self.default
