"""Results, spaces, registries and ncu's files as pandas data frames, for notebooks and reports.

Every value is in base units; `UNITS` has the unit of each column that has one, and so has each
frame in `frame.attrs["units"]`.  A value that was not measured is missing (`pandas.NA`), never
zero.  Columns have one type whatever the rows hold, so that frames of several files can be put
together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from fa_tune.core.errors import ToolMissing
from fa_tune.core.model import Quantity
from fa_tune.core.workload import DType
from fa_tune.profile.ncu.launches import Profile
from fa_tune.store.registry.schema import Registry
from fa_tune.store.table.columns import BOOLEAN, COLUMNS, COUNTERS, RATIOS, SAMPLES, TEXT, WHOLE
from fa_tune.store.table.rows import Row

if TYPE_CHECKING:
    import pandas as pd

TYPES: Mapping[str, str] = {
    WHOLE.name: "Int64",
    BOOLEAN.name: "boolean",
    TEXT.name: "string",
    "dtype": "string",
    "outcome": "string",
    SAMPLES.name: "object",  # a tuple per row
    RATIOS.name: "object",
}
UNITS: Mapping[str, str] = {
    **dict.fromkeys(("duration_s", "median_s", "min_s", "max_s", "interval_low_s"), "s"),
    **dict.fromkeys(("interval_high_s", "samples_s", "held_out_s"), "s"),
    **dict.fromkeys(("duration_percent_of_baseline", "cycles_percent_of_baseline"), "%"),
    **dict.fromkeys(("tflops", "attn_tflops", "matmul_tflops"), "TFLOP/s"),
    "cycles": "cycle",
    **dict.fromkeys(("seq_len", "seq_len_kv", "d_head"), "element"),
    "bytes_per_s": "byte/s",
    **{column.field: column.unit for column in COUNTERS},
}


Columns = dict[str, tuple[str, list[Any]]]  # type and values, by name


def results(rows: Iterable[Row]) -> pd.DataFrame:
    """One row per kernel and workload, in the order given; the columns are the fields of `Row`,
    then `bytes_per_s` where memory may be the limit, `workload`, the workload's key, and `source`.
    """
    rows = list(rows)
    columns: Columns = {
        column.field: (
            TYPES.get(column.kind.name, "Float64"),
            [getattr(row, column.field) for row in rows],
        )
        for column in COLUMNS
    }
    columns["bytes_per_s"] = "Float64", [row.bytes_per_s for row in rows]
    columns["workload"] = "string", [row.workload.key if row.workload else None for row in rows]
    columns["source"] = "string", [row.source for row in rows]
    return _frame(columns)


def spaces(tables: Iterable[Any]) -> pd.DataFrame:
    """One row per variant and workload of recorded spaces (`lab.space_table.load`).  Besides
    `space`, `variant`, `workload`, `outcome`, `reason`, `median_s` and `samples_s` there are
    `knob.NAME`, `fact.NAME` and `counter.NAME` as in the files (docs/spaces.md); a column that a
    space lacks is missing in its rows."""
    found = [(table, row) for table in tables for row in table.rows]
    columns: Columns = {"space": ("string", [table.name for table, _ in found])}
    for name in ("variant", "workload", "outcome", "reason"):
        columns[name] = "string", [getattr(row, name) for _, row in found]
    columns["median_s"] = "Float64", [row.time_s for _, row in found]
    columns["samples_s"] = "object", [row.samples_s for _, row in found]
    for prefix, dtype in (("knob", ""), ("fact", "Float64"), ("counter", "Float64")):
        held = [getattr(row, f"{prefix}s") for _, row in found]
        for name in dict.fromkeys(name for values in held for name in values):
            columns[f"{prefix}.{name}"] = dtype, [values.get(name) for values in held]
    units = {f"counter.{n}": unit for table, _ in found for n, unit in table.meta.units.items()}
    return _frame(columns, units)


def registry(registry: Registry) -> pd.DataFrame:
    """One row per entry; ratios are the chosen config's time over the other's."""
    entries = registry.entries
    columns: Columns = {
        "gpu": ("string", [e.gpu.name for e in entries]),
        "workload": ("string", [e.workload.key for e in entries]),
        "method": ("string", [e.method for e in entries]),
        "inputs": ("string", [e.inputs for e in entries]),
        "family": ("string", [e.chosen.family for e in entries]),
        "kernel": ("string", [e.chosen.config for e in entries]),
        "reason": ("string", [e.reason for e in entries]),
        "recorded_at": ("string", [e.provenance.recorded_at for e in entries]),
    }
    real: dict[str, list[Any]] = {
        "median_s": [e.median_s for e in entries],
        "interval_low_s": [e.interval_s[0] if e.interval_s else None for e in entries],
        "interval_high_s": [e.interval_s[1] if e.interval_s else None for e in entries],
        "matmul_tflops": [e.tflops for e in entries],
        "bytes_per_s": [e.memory_rate and e.memory_rate.bytes_per_s for e in entries],
        "ratio_to_default": [e.ratio_to_default and e.ratio_to_default.value for e in entries],
    }
    for name in sorted({name for e in entries for name in e.ratio_to_references}):
        ratios = [e.ratio_to_references.get(name) for e in entries]
        real[f"ratio_to_{name}"] = [ratio and ratio.value for ratio in ratios]
    columns |= {name: ("Float64", values) for name, values in real.items()}
    columns["n"] = "Int64", [e.n for e in entries]
    columns["tied"] = "Int64", [len(e.tie_set) for e in entries]
    return _frame(columns)


def launches(profile: Profile) -> pd.DataFrame:
    """One row per launch that ncu profiled: `process_id`, `launch_id`, `kernel_name`, `device`,
    and a column for each metric by ncu's name.  A metric that is a text somewhere has texts."""
    found = profile.launches
    types = {"process_id": "Int64", "launch_id": "Int64"}
    types |= dict.fromkeys(("kernel_name", "device"), "string")
    columns: Columns = {n: (t, [getattr(launch, n) for launch in found]) for n, t in types.items()}
    units: dict[str, str] = {}
    for name in dict.fromkeys(name for launch in found for name in launch.metrics):
        cells = [launch.metrics.get(name) for launch in found]
        texts = [cell if isinstance(cell, str) else None for cell in cells]
        if any(text is not None for text in texts):
            columns[name] = "string", texts
            continue
        numbers = [cell.value if isinstance(cell, Quantity) else None for cell in cells]
        columns[name] = "Float64", numbers
        unit = next((cell.unit for cell in cells if isinstance(cell, Quantity)), "")
        units |= {name: unit} if unit else {}
    return _frame(columns, units)


def parquet(rows: Iterable[Row]) -> bytes:
    """`results` as a Parquet file, the units beside the columns; raises ToolMissing."""
    try:
        import pyarrow  # optional, and slow to load
        from pyarrow import parquet as files
    except ImportError:
        raise ToolMissing(
            'Parquet needs pyarrow: pip install "pyarrow>=17", or take --format csv'
        ) from None
    frame = results(rows)
    table = pyarrow.Table.from_pandas(frame, preserve_index=False)
    units = {f"unit:{name}": unit for name, unit in frame.attrs["units"].items()}
    sink = pyarrow.BufferOutputStream()
    files.write_table(table.replace_schema_metadata({**table.schema.metadata, **units}), sink)
    return bytes(sink.getvalue())


def _frame(columns: Columns, units: Mapping[str, str] | None = None) -> pd.DataFrame:
    """A column without a type gets that of its values."""
    import pandas as pd  # late: slow to load

    def series(dtype: str, values: list[Any]) -> pd.Series:
        plain = [value.name if isinstance(value, DType) else value for value in values]
        if dtype == "string":
            plain = [None if value is None else str(value) for value in plain]
        found = pd.Series(plain, dtype=dtype or "object")
        return found if dtype else found.convert_dtypes()

    frame = pd.DataFrame({name: series(*column) for name, column in columns.items()})
    frame.attrs["units"] = {n: u for n, u in {**UNITS, **(units or {})}.items() if n in columns}
    return frame
