"""Workloads of which parts may be unknown, as reports and tables have them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, make_dataclass
from functools import cached_property, lru_cache
from typing import Any

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import FIELDS, OPTIONAL, Workload, column_of

PARTS = tuple(column_of(name) for name in FIELDS)
_NEEDED = tuple(column_of(name) for name in FIELDS if name not in OPTIONAL)
_Fields: Any = make_dataclass(
    "_Fields", [(part, Any, None) for part in PARTS], frozen=True, kw_only=True
)


@dataclass(frozen=True, kw_only=True)
class WorkloadParts(_Fields):  # type: ignore[misc]
    """A workload whose parts may be unknown (None), by their names in tables: `seq_len` is that
    of the queries.  The fields are those of `Workload`."""

    @cached_property
    def missing(self) -> tuple[str, ...]:
        """Names of the unknown parts that have no usual value."""
        return tuple(part for part in _NEEDED if getattr(self, part) is None)

    @cached_property
    def workload(self) -> Workload | None:
        """The workload, with usual values for what nobody states; None if a part that has none is
        unknown, or if the parts make no workload."""
        if self.missing:
            return None
        return _workload(*(getattr(self, part) for part in PARTS))


@lru_cache(maxsize=4096, typed=True)  # a table has few workloads and many rows of each
def _workload(*values: Any) -> Workload | None:
    """That of all parts, None if they make none."""
    known = {n: v for n, v in zip(FIELDS, values, strict=True) if v is not None}
    try:
        return Workload(**known)
    except InvalidConfig:
        return None


def parts_of(workload: Workload) -> Mapping[str, Any]:
    """A workload's parts by their names in tables."""
    return {column_of(name): getattr(workload, name) for name in FIELDS}
