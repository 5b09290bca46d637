"""The committed resource facts: one JSON per NVRTC version and architecture.

tests/data/resources/<nvrtc version>/<arch>.json
    columns   names of the facts
    kernels   "<config> | <traits>" -> the facts in that order
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from fa_tune.build.compile import BuildRequest, BuildResult

FOLDER = Path(__file__).resolve().parent.parent / "data" / "resources"
COLUMNS = (
    "registers",
    "spill_store_bytes",
    "spill_load_bytes",
    "stack_bytes",
    "static_smem_bytes",
    "dynamic_smem_bytes",
    "threads",
    "ctas_per_sm",
)

Table = Mapping[str, tuple[int, ...]]


def row_name(request: BuildRequest) -> str:
    """How the table calls a build."""
    return f"{request.variant.config} | {request.traits}"


def table_of(results: Sequence[BuildResult]) -> Table:
    """The facts of builds that succeeded."""
    return {
        row_name(r.request): tuple(getattr(r.artifact.resources, name) for name in COLUMNS)
        for r in results
        if r.artifact is not None
    }


def table_path(nvrtc: str, arch: str) -> Path:
    """Where the table of an NVRTC version and an architecture is kept."""
    return FOLDER / nvrtc / f"{arch}.json"


def recorded_versions() -> list[str]:
    """The NVRTC versions with tables."""
    return sorted(path.name for path in FOLDER.glob("*") if path.is_dir())


def read_table(path: Path) -> Table:
    """A table from its file."""
    value = json.loads(path.read_text(encoding="utf-8"))
    assert tuple(value["columns"]) == COLUMNS, f"{path} has other columns; record it again"
    return {name: tuple(facts) for name, facts in value["kernels"].items()}


def write_table(path: Path, table: Table) -> None:
    """Write a table, one kernel a line, so that a diff shows what changed."""
    rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(table[name])}" for name in sorted(table))
    text = f'{{\n "columns": {json.dumps(COLUMNS)},\n "kernels": {{\n{rows}\n }}\n}}\n'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def differences(expected: Table, found: Table) -> list[str]:
    """One line for each kernel whose facts changed, appeared or vanished."""
    lines = []
    for name in sorted({*expected, *found}):
        if name not in found:
            lines.append(f"{name}: in the table only")
        elif name not in expected:
            lines.append(f"{name}: not in the table")
        elif expected[name] != found[name]:
            changes = ", ".join(
                f"{column} {old} -> {new}"
                for column, old, new in zip(COLUMNS, expected[name], found[name], strict=True)
                if old != new
            )
            lines.append(f"{name}: {changes}")
    return lines
