"""Workloads of which parts may be unknown, as reports and tables have them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import FIELDS, OPTIONAL, DType, Workload, column_of


@dataclass(frozen=True, kw_only=True)
class WorkloadParts:
    """A workload whose parts may be unknown (None), by their names in tables: `seq_len` is that
    of the queries.  The fields are those of `Workload`."""

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
    window_left: int | None = None
    window_right: int | None = None
    sink: bool | None = None
    softcap: float | None = None
    alibi: bool | None = None
    score_hook: str | None = None
    d_head_v: int | None = None
    packed: bool | None = None
    total_q: int | None = None
    total_kv: int | None = None
    lengths: str | None = None
    cache_lengths: str | None = None
    page_size: int | None = None
    kv_e4m3: bool | None = None
    op: str | None = None

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of the unknown parts that have no usual value."""
        return tuple(part for part in _NEEDED if getattr(self, part) is None)

    @property
    def workload(self) -> Workload | None:
        """The workload, with usual values for what nobody states; None if a part that has none is
        unknown, or if the parts make no workload."""
        if self.missing:
            return None
        return _workload(*(getattr(self, part) for part in PARTS))


PARTS = tuple(column_of(name) for name in FIELDS)
_NEEDED = tuple(column_of(name) for name in FIELDS if name not in OPTIONAL)


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
