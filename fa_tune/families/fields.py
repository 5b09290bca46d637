"""A family's knobs, declared once: a dataclass field carries its type, its place in the
short form and its line in the generated C++ struct.

    dtype: DType = tuple_field("…")             in the parentheses of the short form
    swizzled: bool = flag_field("swizzled")     a word that is there or not
    Q_…: int = tiles_field()                    a number of the `load_Q_K_V_tiles` word
    stages: int = number_field("stages", 1)     `stages_2`; the default is left out
    stages: int = count_field("stages")         `stages_2`, always
    order: Order = choice_field(Order.…)        the word of the value; no word at the default
"""

from __future__ import annotations

import dataclasses
import functools
from abc import ABC, abstractmethod
from dataclasses import Field, field
from enum import Enum, IntEnum
from typing import Any, ClassVar, Self

from fa_tune.core.workload import DType

# Of the generated C++ struct.
CPP_D_V = """\
    // Head dimension of V and O.
    FA_HOST_DEVICE constexpr int d_v() const { return d_head_v != 0 ? d_head_v : d_head; }
"""

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


class Choice(IntEnum):
    """What a knob may be; the first has no word in a short form."""

    @property
    def word(self) -> str:
        """The member in the short form."""
        return self.name.lower() if self else ""


class ConfigBase(ABC):
    """What config classes have in common.  Fields get their declared types: `1` → True, `5` →
    FP16.

    `HEAD`         the short form's beginning, with fields and properties of a config `c` in braces
    `CPP_METHODS`  methods of the generated C++ struct
    `CPP_HEADER`   the struct's header in csrc/ and in exported libraries, where it is another than
                   `<family>_config.h` in the latter alone
    """

    HEAD: ClassVar[str]
    CPP_METHODS: ClassVar[str] = f"\n{CPP_D_V}\n"
    CPP_HEADER: ClassVar[str] = ""

    dtype: DType
    d_head: int
    d_head_v: int

    def __post_init__(self) -> None:
        for name, kind in _kinds(self.__class__):
            value = getattr(self, name)
            if type(value) is not kind:
                object.__setattr__(self, name, kind(value))
        if self.d_head_v == self.d_head:  # one kernel, one config
            object.__setattr__(self, "d_head_v", 0)

    def __str__(self) -> str:
        return self.short_form()

    @abstractmethod
    def kernel_name(self) -> str:
        """The kernel template's name."""

    def short_form(self) -> str:
        """The config as text."""
        return f"{self.HEAD.format(c=self)}: {'+'.join(self.words())}".rstrip()

    @property
    def exact(self) -> bool:
        """Whether the largest weight of a row is exactly 1."""
        return True

    def as_exact(self) -> Self:
        """This config, or the nearest one that is exact."""
        return self

    def repeatable(self) -> Self:
        """This config, or one like it whose kernels give the same bits always."""
        return self

    def words(self) -> list[str]:
        """The words of the short form, in the order of the fields."""
        words: list[str] = []
        tiles: list[str] = []
        for f in _fields(self.__class__):
            value, meta = getattr(self, f.name), f.metadata
            match meta["place"]:
                case "flag" if value:
                    words.append(meta["word"])
                case "tiles":
                    tiles.append(str(value))
                    if len(tiles) == 3:
                        words.append(f"load_{'_'.join(tiles)}_tiles")
                case "count":
                    words.append(f"{meta['word']}_{value}")
                case "number" if value != f.default:
                    words.append(f"{meta['word']}_{value}")
                case "choice" if value != f.default:
                    words.append(value.word)
        return words

    def to_cpp_struct(self) -> str:
        """The config as a C++ literal of the generated struct, which has the class's name."""
        values = (cpp_literal(getattr(self, f.name)) for f in _fields(self.__class__))
        return f"{type(self).__name__}{{{', '.join(values)}}}"

    @property
    def d_v(self) -> int:
        """Head dimension of V and O."""
        return self.d_head_v or self.d_head


# A set is expanded to hundreds of thousands of configs.
@functools.cache
def _fields(config_class: type[Any]) -> tuple[Field[Any], ...]:
    return dataclasses.fields(config_class)


@functools.cache
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
