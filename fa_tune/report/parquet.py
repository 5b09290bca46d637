"""Rows as a Parquet file."""

from __future__ import annotations

from collections.abc import Iterable

from fa_tune.core.errors import ToolMissing
from fa_tune.report import frames
from fa_tune.store.table.rows import Row


def parquet(rows: Iterable[Row]) -> bytes:
    """`frames.results` as a Parquet file, the units beside the columns; raises ToolMissing."""
    try:
        import pyarrow  # optional, and slow to load
        from pyarrow import parquet as files
    except ImportError:
        raise ToolMissing(
            'Parquet needs pyarrow: pip install "pyarrow>=17", or take --format csv'
        ) from None
    frame = frames.results(rows)
    table = pyarrow.Table.from_pandas(frame, preserve_index=False)
    units = {f"unit:{name}": unit for name, unit in frame.attrs["units"].items()}
    sink = pyarrow.BufferOutputStream()
    files.write_table(table.replace_schema_metadata({**table.schema.metadata, **units}), sink)
    return bytes(sink.getvalue())
