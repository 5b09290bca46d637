"""What is known of a workload when only names, grids and options speak of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from fa_tune.core.model import DType
from fa_tune.store.table.rows import USUAL_FIELDS, WORKLOAD_FIELDS, Row

ALL_FIELDS = WORKLOAD_FIELDS + USUAL_FIELDS


@dataclass(frozen=True)
class PartialWorkload:
    """A workload whose parts may be unknown (None); lengths in elements, see `Workload`.
    The last three, unknown, are taken to be as usual."""

    batch: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    seq_len: int | None = None
    seq_len_kv: int | None = None
    d_head: int | None = None
    dtype: DType | None = None
    causal: bool | None = None
    bottom_right: bool | None = None
    lse: bool | None = None
    softmax_scale: float | None = None

    @classmethod
    def of(cls, row: Row) -> PartialWorkload:
        """What a row says."""
        return cls(*(getattr(row, name) for name in ALL_FIELDS))

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of the unknown parts."""
        return tuple(name for name in WORKLOAD_FIELDS if getattr(self, name) is None)

    def merge(self, other: PartialWorkload) -> PartialWorkload:
        """This, with `other` where this knows nothing."""
        return replace(other, **{n: getattr(self, n) for n in ALL_FIELDS if self._has(n)})

    def agrees_with(self, other: PartialWorkload) -> bool:
        """Whether no part that both know differs."""
        return all(
            getattr(self, n) == getattr(other, n)
            for n in ALL_FIELDS
            if self._has(n) and other._has(n)
        )

    def fill_defaults(self) -> PartialWorkload:
        """Key/value length and heads, where unknown, taken as those of the queries."""
        return self.merge(PartialWorkload(kv_heads=self.heads, seq_len_kv=self.seq_len))

    def apply_to(self, row: Row) -> Row:
        """The row with these parts as its workload."""
        return replace(row, **{name: getattr(self, name) for name in ALL_FIELDS})

    def _has(self, name: str) -> bool:
        return getattr(self, name) is not None


def adopted(shape: PartialWorkload, others: Iterable[PartialWorkload]) -> PartialWorkload:
    """`shape`, completed from the one workload among `others` that does not contradict it.

    Unchanged when none or several fit: nothing is guessed.
    """
    if not shape.missing:
        return shape
    fitting = {other for other in others if shape.agrees_with(other)}
    return shape.merge(fitting.pop()) if len(fitting) == 1 else shape
