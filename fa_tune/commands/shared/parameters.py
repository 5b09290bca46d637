"""Kinds of values that options take, each refusing what it cannot mean with one clear line."""

from __future__ import annotations

import math
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from fa_tune.core import hooks
from fa_tune.core.arch import parse_arch
from fa_tune.core.errors import InvalidConfig, StorageError
from fa_tune.core.inputs import BUILT_IN, NAMES, InputSpec, Kind
from fa_tune.core.workload import DType, FieldSpec, Workload
from fa_tune.families import family_names
from fa_tune.search.strategies import FORMER
from fa_tune.search.strategies.budget import Budget

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]
else:  # older releases of click have no generic ParamType
    ParamType = click.ParamType

STDOUT = Path("-")
ALL_FAMILIES = "all"


class _CommaList(ParamType, ABC):
    """Values between commas; blanks around them do not count, repeated values count once."""

    example = ""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Any, ...]:
        if not isinstance(value, str):
            return tuple(value)
        words = [word.strip() for word in value.split(",")]
        if not all(words):
            self.fail(f"{value!r} has an empty place; write it like {self.example}", param, ctx)
        return tuple(dict.fromkeys(self.convert_word(word, param, ctx) for word in words))

    @abstractmethod
    def convert_word(
        self, word: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        """The value of one word; fails as click's types do."""


class WholeNumbers(_CommaList):
    """`1024,4096`, each within `least` and `most`."""

    name = "numbers"

    def __init__(self, least: int, most: int, example: str) -> None:
        self.least = least
        self.most = most
        self.example = example

    def convert_word(
        self, word: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """The number of one word."""
        if re.fullmatch(r"\d+\s*(-|:|\.\.+|…)\s*\d+.*", word):
            self.fail(
                f"{word!r} is a range; name every value instead, like {self.example}", param, ctx
            )
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", word):
            self.fail(
                f"{word[:40]!r} is not a whole number; write a list like {self.example}", param, ctx
            )
        number = int(word)
        if not self.least <= number <= self.most:
            self.fail(f"{number} is not between {self.least} and {self.most}", param, ctx)
        return number


class GpuNumbers(ParamType):
    """`0,1,3`, or `all` for every GPU that is visible; each GPU once."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        if value.strip().lower() == "all":
            return "all"
        numbers: list[int] = []
        for word in (w.strip() for w in value.split(",")):
            if not re.fullmatch(r"[0-9]{1,4}", word):
                self.fail(f"{value[:40]!r} is not a list of GPUs; write 0,1 or all", param, ctx)
            if int(word) in numbers:
                self.fail(f"GPU {int(word)} is named twice; name each GPU once", param, ctx)
            numbers.append(int(word))
        return tuple(numbers)


class WholeNumber(click.IntRange):
    """A whole number between two."""

    name = "n"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if not re.fullmatch(r"\s*[+-]?[0-9]{1,18}\s*", str(value)):
            self.fail(f"{str(value)[:40]!r} is not a whole number", param, ctx)
        return int(super().convert(value, param, ctx))


class Number(click.FloatRange):
    """A number between two."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            known = not math.isnan(float(value))  # NaN is in no range, and yet not out of one
        except ValueError:
            known = False
        if not known:
            self.fail(f"{str(value)[:40]!r} is not a number", param, ctx)
        return float(super().convert(value, param, ctx))


def number(kind: type, least: float | None, most: float | None) -> click.ParamType[Any]:
    """What an option of whole numbers (`kind` int) or of any takes between two limits."""
    if kind is int:
        return WholeNumber(least, most)  # type: ignore[arg-type]
    return Number(least, most)


class StrategyName(click.Choice[str]):
    """A strategy's name; of one that left, the error says what to take in its place."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if instead := FORMER.get(str(value)):
            self.fail(f"{value!r} is gone; take {instead!r}", param, ctx)
        return super().convert(value, param, ctx)


class Names(_CommaList):
    """Some of a few names, `fa2,cudnn`; with `none`, that word alone stands for no name.  `former`
    names have what to take in their place."""

    name = "names"

    def __init__(
        self,
        allowed: Sequence[str],
        value: Callable[[str], Any] = str,
        *,
        none: bool = False,
        former: Mapping[str, str] = {},
    ) -> None:
        self.allowed = allowed
        self.former = former
        self.value = value
        self.none = none
        self.example = ",".join(allowed)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Any, ...]:
        if self.none and value == "none":
            return ()
        return super().convert(value, param, ctx)

    def convert_word(
        self, word: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        """What one name stands for."""
        if self.none and word.lower() == "none":
            self.fail("'none' stands alone, without other names", param, ctx)
        if instead := self.former.get(word.lower()):
            self.fail(f"{word!r} is gone; take {instead!r}", param, ctx)
        if word.lower() not in self.allowed:
            names = [*self.allowed, *(["none"] if self.none else [])]
            self.fail(f"{word[:40]!r} is not one of {', '.join(names)}", param, ctx)
        return self.value(word.lower())

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        done, comma, start = incomplete.rpartition(",")
        taken = done.split(",")
        words = [n for n in self.allowed if n.startswith(start) and n not in taken]
        return _items(f"{done}{comma}{word}" for word in words)


def dtypes() -> Names:
    """`fp16,bf16` as DTypes."""
    return Names([d.name.lower() for d in DType], DType.from_string)


class Families(_CommaList):
    """`sm80,sm90` as names of families; `all` alone stands for no name: those that can run."""

    name = "families"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Any, ...]:
        if isinstance(value, str) and value.strip().lower() == ALL_FAMILIES:
            return ()
        return super().convert(value, param, ctx)

    @property
    def example(self) -> str:  # type: ignore[override]
        """The names of all families."""
        return ",".join(family_names())

    def convert_word(
        self, word: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """One family's name."""
        if word.lower() == ALL_FAMILIES:
            self.fail(f"{ALL_FAMILIES!r} stands alone, without other names", param, ctx)
        if word.lower() not in family_names():
            known = ", ".join((*family_names(), ALL_FAMILIES))
            self.fail(f"{word[:40]!r} is not one of {known}", param, ctx)
        return word.lower()

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        done, comma, start = incomplete.rpartition(",")
        taken = done.split(",")
        words = [*family_names(), ALL_FAMILIES] if not comma else family_names()
        left = [w for w in words if w not in taken and ALL_FAMILIES not in taken]
        return _items(f"{done}{comma}{word}" for word in left if word.startswith(start))


class DTypeChoice(ParamType):
    """`fp16` or `bf16` as a DType."""

    name = "dtype"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> DType:
        if isinstance(value, DType):
            return value
        try:
            return DType.from_string(str(value))
        except InvalidConfig as error:
            self.fail(str(error), param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return _items(n for n in (d.name.lower() for d in DType) if n.startswith(incomplete))


class Inputs(ParamType):
    """`peaked:3` or `file:qkv.safetensors` as an InputSpec, a path as an absolute one."""

    name = "inputs"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> InputSpec:
        if isinstance(value, InputSpec):
            return value
        try:
            spec = InputSpec.parse(str(value))
        except InvalidConfig as error:
            self.fail(str(error), param, ctx)
        if spec.kind is not Kind.FILE:
            return spec
        # Workers are not necessarily started in this folder.
        return InputSpec(Kind.FILE, path=str(Path(spec.path).expanduser().absolute()))

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        words = [name.partition(":")[0] for name in NAMES]
        return _items(word for word in words if word.startswith(incomplete))


class InputsList(Inputs):
    """`normal,peaked:3`, `all` for every built-in one, or a file alone, as a tuple; a path may
    have commas."""

    def convert(  # type: ignore[override]
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[InputSpec, ...]:
        if not isinstance(value, str):
            return tuple(value)
        if value.strip().lower() == "all":
            return BUILT_IN
        words = [value] if value.strip().lower().startswith("file:") else value.split(",")
        convert = super().convert
        return tuple(convert(word, param, ctx) for word in words)


class WorkloadKey(ParamType):
    """A workload's key, `b16_h16_kv16_q4096_k4096_d128_fp16_full`, as a Workload."""

    name = "key"
    example = "b16_h16_kv16_q4096_k4096_d128_fp16_full"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Workload:
        if isinstance(value, Workload):
            return value
        try:
            return Workload.from_key(str(value).strip())
        except InvalidConfig as error:
            self.fail(f"{error}; a key is like {self.example}", param, ctx)


class Architecture(ParamType):
    """`sm_90`, `90` or `9.0`, as `sm_90`; a suffix as in `sm_90a` is kept."""

    name = "arch"
    suggestions = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value).strip().lower()
        try:
            return parse_arch(text).arch + (text[-1] if text[-1:] in ("a", "f") else "")
        except InvalidConfig as error:
            self.fail(str(error), param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return _items(s for s in self.suggestions if s.startswith(incomplete))


class Architectures(_CommaList):
    """`sm_90a,sm_80`, each as `Architecture` reads it."""

    name = "archs"
    example = "sm_90a,sm_80"

    def convert_word(
        self, word: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """One architecture."""
        return Architecture().convert(word, param, ctx)


class WorkloadKeys(_CommaList):
    """Keys of workloads."""

    name = "keys"
    example = WorkloadKey.example

    def convert_word(
        self, word: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> Workload:
        """One workload."""
        return WorkloadKey().convert(word, param, ctx)


class Kernels(ParamType):
    """A set's key or one config's short form; what it means is the search's business."""

    name = "kernels"
    sets = ("fast", "wide", "tune", "prog", "prog-all", "all")
    suggestions = (*sets, "64,32", "64,64", "128,32", "128,64")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value).strip()
        if not text:
            self.fail("the name of a set, or a config's short form, is missing", param, ctx)
        return text

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return _items(s for s in self.suggestions if s.startswith(incomplete))


class ScoreHook(ParamType):
    """The file of a score hook, or its digest, to its digest; a file is known to the processes that
    are started from then on."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if hooks.is_digest(text) and not Path(text).exists():
            return text
        try:
            return hooks.register_for_children(Path(text))
        except InvalidConfig as error:
            self.fail(str(error), param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="file")]


def of_field(name: str, spec: FieldSpec) -> click.ParamType[Any]:
    """The type of the option of a workload's field that is no flag."""
    if name == "score_hook":
        return ScoreHook()
    return click.STRING if spec.type is str else number(spec.type, *spec.limits)


class NamedPath(click.Path):
    """A path as click's; an empty one, of a variable that is not set, is not the folder one is
    in."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(path_type=Path, **settings)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not str(value):
            self.fail("the path is empty", param, ctx)
        return super().convert(value, param, ctx)


class OutputFile(ParamType):
    """A file to write, checked before the work starts; `-` is standard output if `stdout`."""

    name = "path"

    def __init__(self, *, stdout: bool = True) -> None:
        self.stdout = stdout

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(value)
        if str(value) == "-":
            if not self.stdout:
                self.fail("standard output has something else: name a file", param, ctx)
            return STDOUT
        if not str(value):
            self.fail("the path is empty", param, ctx)
        if path.is_dir():
            self.fail(f"{str(value)!r} is a folder, not a file to write", param, ctx)
        folder = path.parent
        if not folder.is_dir():
            self.fail(f"there is no folder {str(folder)!r} to write {path.name} in", param, ctx)
        if not os.access(path if path.exists() else folder, os.W_OK):
            raise StorageError(f"cannot write {path}: no permission, or a read-only disk")
        return path

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="file")]


def _items(words: Iterable[str]) -> list[CompletionItem]:
    return [CompletionItem(word) for word in words]


class BudgetType(ParamType):
    """`60`, `300s` or `60,300s`."""

    name = "budget"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Budget:
        if isinstance(value, Budget):
            return value
        try:
            return Budget.parse(value)
        except InvalidConfig as error:
            self.fail(str(error), param, ctx)
