"""What is known of a workload when only names, grids and options speak of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from fa_tune.core.workload_parts import PARTS, WorkloadParts, parts_of
from fa_tune.store.table.rows import Row


class PartialWorkload(WorkloadParts):
    """A workload whose parts may be unknown (None); lengths in elements, see `Workload`."""

    @classmethod
    def of(cls, row: Row) -> PartialWorkload:
        return cls(**{name: getattr(row, name) for name in PARTS})

    def merge(self, other: PartialWorkload) -> PartialWorkload:
        """This, with `other` where this knows nothing."""
        return replace(other, **{n: getattr(self, n) for n in PARTS if self._has(n)})

    def agrees_with(self, other: PartialWorkload) -> bool:
        """Whether no part that both know differs."""
        return all(
            getattr(self, n) == getattr(other, n) for n in PARTS if self._has(n) and other._has(n)
        )

    def fill_defaults(self) -> PartialWorkload:
        """Key/value length and heads, where unknown, taken as those of the queries."""
        return self.merge(PartialWorkload(kv_heads=self.heads, seq_len_kv=self.seq_len))

    def settled(self) -> PartialWorkload:
        """The same with known parts as a workload has them: one problem has one name, whether or
        not its d_head_v is told, or a window that hides nothing.  What hangs on unknown parts
        stays as it is."""
        workload = self.workload
        settled = {} if workload is None else {**parts_of(workload)}
        if workload is None and self.d_head_v == self.d_head:
            settled["d_head_v"] = None
        return replace(self, **{n: v for n, v in settled.items() if self._has(n)})

    def apply_to(self, row: Row) -> Row:
        """The row with these parts as its workload."""
        return replace(row, **{name: getattr(self, name) for name in PARTS})

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
