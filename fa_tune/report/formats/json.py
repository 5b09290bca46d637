"""Rows as JSON: one object per row, base units in the names, a missing value null."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from fa_tune.core.workload import DType
from fa_tune.store.table.columns import Column, columns_of
from fa_tune.store.table.rows import Row

SCHEMA = "fa-tune-report-1"


def write_json(rows: Iterable[Row], stream: TextIO) -> None:
    """`{"schema": …, "rows": [{"kernel": …, "duration_s": …, …}, …]}` in the order given."""
    rows = list(rows)
    columns = columns_of(rows)
    document = {"schema": SCHEMA, "rows": [_object(row, columns) for row in rows]}
    json.dump(document, stream, indent=1, ensure_ascii=False, allow_nan=False)
    stream.write("\n")


def _object(row: Row, columns: Sequence[Column]) -> dict[str, Any]:
    values = {column.field: getattr(row, column.field) for column in columns}
    if row.source:
        values["source"] = row.source
    return {name: v.name if isinstance(v, DType) else v for name, v in values.items()}
