"""How long K and V take from memory, and how many tiles there are for a multiprocessor: what
decides how they are best shared.  Figures are of an H200 (benchmarks/decode_h200.txt), and taken to
hold for every multiprocessor of another GPU, and for its memory if nothing is known of that."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fa_tune.core.arch import ArchLimits
from fa_tune.families.decode.bounds import Bounds
from fa_tune.families.decode.config import DecodeConfig

BYTES_PER_NS = 4400.0 / 132  # of a multiprocessor, if all of them read
READ_SHARE = 4400.0 / 4800.0  # of what the maker states of memory, that kernels read


@dataclass(frozen=True)
class Tiles:
    """Tiles on a GPU, all of as many keys; of 0 where the device alone knows how many.  Then no
    tile has more than `most_keys`, and all have as many as one another if they are of one
    sequence.  Keys that a window hides from all queries do not count."""

    number: int
    keys: int
    arch: ArchLimits
    bounds: Bounds
    most_keys: int = 0
    sequences: int = 0

    @property
    def density(self) -> float:
        """Tiles for a multiprocessor."""
        return self.number / self.arch.multiprocessors

    @property
    def bytes_per_ns(self) -> float:
        """Bytes that all multiprocessors read together in a nanosecond at most."""
        if self.arch.memory_bytes_per_ns is None:
            return BYTES_PER_NS * self.arch.multiprocessors
        return READ_SHARE * self.arch.memory_bytes_per_ns

    def read_ns(self, config: DecodeConfig) -> float:
        """What reading all of them takes at best if multiprocessors read as an H200's do: a measure
        of how much there is for each, by which bounds are kept."""
        n_bytes = self.number * self.keys * config.key_bytes
        return n_bytes / (BYTES_PER_NS * self.arch.multiprocessors)

    def split(self, parts: int) -> Tiles:
        """So many, of fewer rows, in place of each."""
        return replace(self, number=parts * self.number)
