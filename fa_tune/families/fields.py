"""A family's knobs, declared once: a dataclass field carries its type, its place in the
short form and its line in the generated C++ struct.

    dtype: DType = tuple_field("…")             in the parentheses of the short form
    swizzled: bool = flag_field("swizzled")     a word that is there or not
    Q_…: int = load_field("load")               a number of the `load_Q_K_V_tiles` word
    stages: int = number_field("stages", 1)     `stages_2`; the default is left out
    order: Order = choice_field(Order.…)        the word of the value; no word at the default
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import Field, field
from enum import Enum
from typing import Any

from fa_tune.core.workload import DType

# Every helper returns Any, as dataclasses.field does for type checkers.


def tuple_field(doc: str) -> Any:
    """A positional number in the short form's parentheses."""
    return field(metadata={"place": "tuple", "doc": doc})


def flag_field(word: str, doc: str, *, later: bool = False) -> Any:
    """A boolean shown by the presence of `word`; a `later` knob is off by default."""
    metadata = {"place": "flag", "word": word, "doc": doc}
    return field(default=False, metadata=metadata) if later else field(metadata=metadata)


def tiles_field(doc: str) -> Any:
    """One number of the word `load_<Q>_<K>_<V>_tiles`."""
    return field(metadata={"place": "tiles", "doc": doc})


def number_field(word: str, default: int, doc: str) -> Any:
    """A later knob, shown as `<word>_<n>` and left out of the short form at its default."""
    return field(default=default, metadata={"place": "number", "word": word, "doc": doc})


def count_field(word: str, doc: str) -> Any:
    """A number that every short form has, shown as `<word>_<n>`."""
    return field(metadata={"place": "count", "word": word, "doc": doc})


def choice_field(default: Enum, doc: str) -> Any:
    """One of an enum's members, shown as its name in lower case; the default is left out."""
    return field(default=default, metadata={"place": "choice", "type": type(default), "doc": doc})


def d_head_v_field() -> Any:
    """The head dimension of V and O, which a short form says only where it is another one."""
    return number_field("d_head_v", 0, "head dimension of V and O; 0: as d_head")


def d_v_of(config: Any) -> int:
    """The head dimension of V and O of a config; one without the field has that of Q and K."""
    return getattr(config, "d_head_v", 0) or int(config.d_head)


def is_kv_e4m3(config: Any) -> bool:
    """Whether K and V of a config are e4m3; one without the field has them as Q."""
    return bool(getattr(config, "kv_type", 0))


def coerce(config: Any) -> None:
    """Give every field of a frozen dataclass its declared type: `1` → True, `5` → FP16."""
    for name, kind in _kinds(config.__class__):
        value = getattr(config, name)
        if type(value) is not kind:
            object.__setattr__(config, name, kind(value))


@functools.cache  # a set is expanded to hundreds of thousands of configs
def _kinds(config_class: type[Any]) -> tuple[tuple[str, type], ...]:
    return tuple((f.name, python_type(f)) for f in dataclasses.fields(config_class))


def python_type(f: Field[Any]) -> type:
    """The declared type of a config field: DType, int, bool or the enum of a choice."""
    chosen: type | None = f.metadata.get("type")
    return chosen or {"DType": DType, "int": int, "bool": bool}[str(f.type)]


def cpp_type(f: Field[Any]) -> str:
    """The field's type in the generated struct."""
    return str(f.type)


def cpp_literal(value: Any) -> str:
    """A field's value as C++ writes it in our kernels."""
    if isinstance(value, Enum):
        return f"{type(value).__name__}::{value.name}"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
