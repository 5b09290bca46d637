"""Kinds of values that options take, each refusing what it cannot mean with one clear line."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from fa_tune.core import hooks
from fa_tune.core.arch import parse_arch
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.files import check_replaceable
from fa_tune.core.inputs import BUILT_IN, NAMES, InputSpec, Kind
from fa_tune.core.published import workloads_of
from fa_tune.core.workload import DType, FieldSpec, Workload
from fa_tune.families import family_names
from fa_tune.libraries import user
from fa_tune.search.strategies import FORMER, STRATEGIES
from fa_tune.search.strategies.budget import Budget

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]
else:  # older releases of click have no generic ParamType
    ParamType = click.ParamType

STDOUT = Path("-")
ALL_FAMILIES = "all"
KEY = "b16_h16_kv16_q4096_k4096_d128_fp16_full"


class Read(ParamType):
    """What a function makes of the text; it raises InvalidConfig for what it cannot mean.  A shell
    offers the `words`, or without any the files."""

    def __init__(
        self, name: str, read: Callable[[str], Any], words: Sequence[str] | None = ()
    ) -> None:
        self.name, self.read, self.words = name, read, words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self.read(value)
        except InvalidConfig as error:
            self.fail(str(error), param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        if self.words is None:
            return [CompletionItem(incomplete, type="file")]
        return [CompletionItem(word) for word in self.words if word.startswith(incomplete)]


class Listed(Read):
    """Values between commas, each as `read` makes it, once; blanks do not count.  The word `alone`
    stands for no value."""

    def __init__(
        self,
        name: str,
        read: Callable[[str], Any],
        example: str,
        words: Sequence[str] = (),
        alone: str = "",
    ) -> None:
        super().__init__(name, self._listed, words)
        self.one, self.example, self.alone = read, example, alone

    def _listed(self, text: str) -> tuple[Any, ...]:
        words = [word.strip() for word in text.split(",")]
        if not all(words):
            raise InvalidConfig(f"{text!r} has an empty place; write it like {self.example}")
        if self.alone and self.alone in (lower := [word.lower() for word in words]):
            if len(lower) > 1:
                raise InvalidConfig(f"{self.alone!r} stands alone, without other names")
            return ()
        return tuple(dict.fromkeys(self.one(word) for word in words))

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        done, comma, start = incomplete.rpartition(",")
        taken = done.split(",")
        words = [*(self.words or ()), *([self.alone] if self.alone and not comma else [])]
        if self.alone and self.alone in taken:
            return []
        left = (word for word in words if word not in taken and word.startswith(start))
        return [CompletionItem(f"{done}{comma}{word}") for word in left]


def names(
    allowed: Sequence[str],
    value: Callable[[str], Any] = str,
    *,
    alone: str = "",
    also: Mapping[str, str] = {},
    former: Mapping[str, str] = {},
) -> Listed:
    """Some of a few names, `fa2,cudnn`; the word `alone` stands for none of them, `also` are other
    names for some, and `former` names have what to take in their place."""
    known = [*allowed, *([alone] if alone else [])]

    def read(word: str) -> Any:
        if instead := former.get(word.lower()):
            raise InvalidConfig(f"{word!r} is gone; take {instead!r}")
        name = also.get(word.lower(), word.lower())
        if name not in allowed:
            raise InvalidConfig(f"{word[:40]!r} is not one of {', '.join(known)}")
        return value(name)

    return Listed("names", read, ",".join(allowed), allowed, alone)


def whole_numbers(least: int, most: int, example: str) -> Listed:
    """`1024,4096`, each within `least` and `most`."""

    def read(word: str) -> int:
        if re.fullmatch(r"\d+\s*(-|:|\.\.+|…)\s*\d+.*", word):
            raise InvalidConfig(f"{word!r} is a range; name every value instead, like {example}")
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", word):
            raise InvalidConfig(f"{word[:40]!r} is not a whole number; write a list like {example}")
        if not least <= int(word) <= most:
            raise InvalidConfig(f"{int(word)} is not between {least} and {most}")
        return int(word)

    return Listed("numbers", read, example)


def _gpu_numbers(text: str) -> tuple[int, ...] | str:
    if text.strip().lower() == "all":
        return "all"
    numbers: list[int] = []
    for word in (w.strip() for w in text.split(",")):
        if not re.fullmatch(r"[0-9]{1,4}", word):
            raise InvalidConfig(f"{text[:40]!r} is not a list of GPUs; write 0,1 or all")
        if int(word) in numbers:
            raise InvalidConfig(f"GPU {int(word)} is named twice; name each GPU once")
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


def _input(text: str) -> InputSpec:
    spec = InputSpec.parse(text)
    if spec.kind is not Kind.FILE:
        return spec
    # Workers are not necessarily started in this folder.
    return InputSpec(Kind.FILE, path=str(Path(spec.path).expanduser().absolute()))


def _inputs(text: str) -> tuple[InputSpec, ...]:
    """A path may have commas."""
    if text.strip().lower() == "all":
        return BUILT_IN
    words = [text] if text.strip().lower().startswith("file:") else text.split(",")
    return tuple(_input(word) for word in words)


def _workload(text: str) -> Workload:
    try:
        return Workload.from_key(text.strip())
    except InvalidConfig as error:
        raise InvalidConfig(f"{error}; a key is like {KEY}") from None


def _architecture(text: str) -> str:
    word = text.strip().lower()
    return parse_arch(word).arch + (word[-1] if word[-1:] in ("a", "f") else "")


def _family(word: str) -> str:
    if word.lower() not in family_names():
        known = ", ".join((*family_names(), ALL_FAMILIES))
        raise InvalidConfig(f"{word[:40]!r} is not one of {known}")
    return word.lower()


def _kernels(text: str) -> str:
    if not text.strip():
        raise InvalidConfig("the name of a set, or a config's short form, is missing")
    return text.strip()


def _score_hook(text: str) -> str:
    """A digest is its own; a file is known to the processes that are started from then on."""
    if hooks.is_digest(text) and not Path(text).exists():
        return text
    return hooks.register_for_children(Path(text))


_DTYPES = [d.name.lower() for d in DType]
_ALSO_DTYPES = {"float16": "fp16", "half": "fp16", "bfloat16": "bf16"}  # as torch has them


def _dtype(word: str) -> DType:
    known = word.strip().lower()
    return DType.from_string(_ALSO_DTYPES.get(known, known))


_INPUT_NAMES = [name.partition(":")[0] for name in NAMES]
_SETS = ("fast", "wide", "tune", "prog", "prog-all", "all", "64,32", "64,64", "128,32", "128,64")

GPU_NUMBERS = Read("numbers", _gpu_numbers)  # `0,1,3` as a tuple, or `all`
DTYPE = Read("dtype", _dtype, _DTYPES)
DTYPES = names(_DTYPES, _dtype, also=_ALSO_DTYPES)
# Without a name, those that can run.
FAMILIES = Listed("families", _family, ",".join(family_names()), family_names(), ALL_FAMILIES)
INPUT = Read("inputs", _input, _INPUT_NAMES)  # `peaked:3` as an InputSpec, a path as absolute
INPUTS_LIST = Read("inputs", _inputs, _INPUT_NAMES)  # several, or `all`, as a tuple
WORKLOAD = Read("key", _workload)  # a workload's key as a Workload
WORKLOADS = Listed("keys", _workload, KEY)
# A kernel of a user's, found but not loaded.
PLACE = Read("place", lambda text: user.locate(text).place, None)
MODELS = Listed("models", workloads_of, "llama-3.1-8b,gpt-oss-20b:decoding")  # their workloads
# `sm_90`, `90` or `9.0` as `sm_90`; a suffix as in `sm_90a` is kept.
ARCHITECTURE = Read("arch", _architecture, ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"))
ARCHITECTURES = Listed("archs", _architecture, "sm_90a,sm_80")
KERNELS = Read("kernels", _kernels, _SETS)  # a set's key or a config; the search knows its meaning
STRATEGIES_LIST = names(tuple(STRATEGIES), alone="none", former=FORMER)
STRATEGY = Read("strategy", names(tuple(STRATEGIES), former=FORMER).one, tuple(STRATEGIES))
BUDGET = Read("budget", Budget.parse)  # `60`, `300s` or `60,300s`
SCORE_HOOK = Read("file", _score_hook, None)  # a hook's file or digest as its digest


def of_field(name: str, spec: FieldSpec) -> click.ParamType[Any]:
    """The type of the option of a workload's field that is no flag."""
    if name == "score_hook":
        return SCORE_HOOK
    if spec.allowed:
        return click.Choice(spec.allowed)
    if spec.type is str:
        return click.STRING
    return (WholeNumber if spec.type is int else Number)(*spec.limits)  # type: ignore[arg-type]


class NamedPath(click.Path):
    """A path as click's; an empty one, of a variable that is not set, is not the folder one is
    in."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(path_type=Path, readable=False, **settings)  # who reads it says it better

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not str(value):
            self.fail("the path is empty", param, ctx)
        return super().convert(value, param, ctx)


def output_file(*, stdout: bool = True) -> Read:
    """A file to write, checked before the work starts; `-` is standard output if `stdout`."""
    return Read("path", partial(_output, stdout), None)


def _output(stdout: bool, text: str) -> Path:
    path = Path(text)
    if text == "-":
        if not stdout:
            raise InvalidConfig("standard output has something else: name a file")
        return STDOUT
    if not text:
        raise InvalidConfig("the path is empty")
    if path.is_dir():
        raise InvalidConfig(f"{text!r} is a folder, not a file to write")
    folder = path.parent
    if not folder.is_dir():
        raise InvalidConfig(f"there is no folder {str(folder)!r} to write {path.name} in")
    check_replaceable(path, "name another file")
    return path
