"""What the JSON documents of the commands have in common.

Each document is a dataclass beside the code that fills it.  Times are in seconds.  What was not
measured or does not apply is null.  A name that ends in a number has another one as soon as a
document changes in a way that breaks a reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, make_dataclass
from typing import Annotated, Any, Literal, TypeVar, get_args, get_type_hints

from fa_tune.commands.shared.output import write_json
from fa_tune.core import codec, model
from fa_tune.core.codec import NOT_NEGATIVE
from fa_tune.core.model import Outcome, Variant
from fa_tune.core.workload import DType
from fa_tune.store.table import columns

T = TypeVar("T")
Seconds = Annotated[float, NOT_NEGATIVE]
Count = Annotated[int, NOT_NEGATIVE]
Stages = Annotated[Mapping[str, Seconds], "How long each stage took, in the order of the stages."]

_TYPES: Mapping[str, Any] = {
    columns.WHOLE.name: int,
    columns.BOOLEAN.name: bool,
    columns.TEXT.name: str,
    columns.DTYPE.name: Literal[tuple(dtype.name for dtype in DType)],
    columns.OUTCOME.name: Outcome,
    columns.SAMPLES.name: tuple[Seconds, ...],
    columns.RATIOS.name: tuple[float, ...],
}


def _row_fields() -> list[tuple[Any, ...]]:
    """A field per column of a table; one that only some files have may be left out."""
    found: list[tuple[Any, ...]] = []
    for column in columns.COLUMNS:
        kind = _TYPES.get(column.kind.name, float) | None
        kind = Annotated[kind, column.heading]
        found.append((column.field, kind, *([None] if column.only_unless else [])))
    rate = "Of the tensors, each once; only where memory may be the limit."
    found.append(("bytes_per_s", Annotated[float | None, rate], None))
    found.append(("source", Annotated[str, "The file that the row was read from."], ""))
    return found


Row: Any = make_dataclass("Row", _row_fields(), kw_only=True)
Row.__doc__ = "One kernel on one workload, by the columns of a table."


@dataclass(frozen=True)
class Rejected:
    """A config that cannot run, or that a set leaves out."""

    variant: str
    constraint: str
    reason: str


@dataclass(frozen=True)
class Memory:
    """What crosses between memory and the chip if everything crosses once, in a second: as a
    share of the GPU's peak, and of the speed of a bare read of K and V."""

    bytes_per_s: float
    of_peak: float | None
    of_read: float | None


def memory(rate: Any) -> Memory | None:
    """The same figures as a part of a document."""
    return None if rate is None else Memory(**asdict(rate))


def rejected(found: Iterable[tuple[Variant, model.Rejected]]) -> tuple[Rejected, ...]:
    """What cannot run, and why."""
    return tuple(Rejected(variant.key, why.constraint, why.reason) for variant, why in found)


def filled(kind: type[T], *sources: Any, **others: Any) -> T:
    """Object of a dataclass: `others` are fields by name; each of the rest is the attribute of that
    name of the first source that has one, else the field's default."""
    names = [field.name for field in fields(kind) if field.name not in others]  # type: ignore[arg-type]
    for name in names:
        found = [source for source in sources if hasattr(source, name)]
        if found:
            others[name] = getattr(found[0], name)
    return kind(**others)


def name_of(document: Any) -> str:
    """The name that documents of a type have in `schema`."""
    (name,) = get_args(get_type_hints(document)["schema"])
    return str(name)


def write_document(kind: type, *sources: Any, **others: Any) -> None:
    """One document of a type on standard output, `filled`, its `schema` before its other fields."""
    name = name_of(kind)
    write_json({"schema": name} | codec.dump(filled(kind, *sources, schema=name, **others)))
