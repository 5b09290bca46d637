"""Reads a config back from text: the short form, or the config struct in a kernel's name.

What a name may contain comes from the config class's field metadata alone, so a knob added
to the class is read without a change here.  Nothing is guessed or skipped: every word and
value is accounted for, or InvalidConfig says in one line which one was not understood.  The
functions at the end are for families that read their short forms themselves.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field
from enum import Enum
from typing import Any, Generic, TypeVar

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import DType
from fa_tune.families.fields import python_type

C = TypeVar("C")

EXAMPLE = "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax"
TILES_WORD = "load_<Q>_<K>_<V>_tiles"

_QUOTES = "\"'`“”‘’"
_CELL_ENDS = "|│┃;,\t\r\n"
_HEAD = re.compile(r"(?<![\w+)])\(([^()]*)\)\s*:")
_TUPLE = re.compile(r"\(\s*\w+(?:\s*,\s*-?[0-9]+)+\s*\)")
_WORDS = re.compile(rf"[^{re.escape(_QUOTES + _CELL_ENDS)}]*")
_CELL = re.compile(rf"([{re.escape(_CELL_ENDS)}])([^{re.escape(_CELL_ENDS)}]*)")
_LAST_CELL = re.compile(rf"[^{re.escape(_CELL_ENDS)}]*\Z")
_AFTER_STRUCT = re.compile(rf"[>,;){re.escape(_QUOTES)}\s]|\Z")  # in a kernel's name, or a literal
_TILES = re.compile(r"load((?:_-?[0-9]+)*)_tiles")
_NUMBERED = re.compile(r"(.+)_(-?[0-9]+)")
_MAX_DIGITS = 9  # keeps every value inside a C++ int


class NameParser(Generic[C]):
    """Parser of the names of one config class, a dataclass of `config_fields` fields."""

    def __init__(self, config_class: type[C], family: str = "") -> None:
        self.config_class = config_class
        self.family = family  # may stand before a short form: `sm80:(FP16, …`
        self.fields: tuple[Field[Any], ...] = dataclasses.fields(config_class)  # type: ignore[arg-type]
        self._tuple = self._placed("tuple")
        self._tiles = self._placed("tiles")
        self._flags = {f.metadata["word"]: f for f in self._placed("flag")}
        self._numbers = {f.metadata["word"]: f for f in self._placed("number")}
        self._choices = {
            member.word: (f, member)
            for f in self._placed("choice")
            for member in f.metadata["type"]
            if member is not f.default
        }
        name = re.escape(config_class.__name__)
        self._struct = re.compile(rf"(?<!\w){name}\s*\{{([^{{}}]*)(\}}?)")

    def _placed(self, place: str) -> list[Field[Any]]:
        return [f for f in self.fields if f.metadata["place"] == place]

    # One entry point ----------------------------------------------------------------------

    def parse(self, text: str, *, d_head: int = 128) -> C:
        """The config in `text`, whichever of the three forms it has; raises InvalidConfig."""
        struct = self._struct.search(text)
        if struct is None:
            return self.short_form(text, d_head=d_head)
        if _heads(text):
            raise InvalidConfig(f"more than one config in {_show(text)}; give one")
        return self.demangled_typed(text) if "(" in struct[1] else self.demangled(text)

    # Struct in a demangled name -----------------------------------------------------------

    def demangled(self, text: str) -> C:
        """From `FlashForwardKernelConfig{5, 128, 64, 64, 4, 1, …}`, booleans as 1/0 or
        true/false, the dtype as a number or as C++ writes it (`DType::FP16`)."""
        return self._from_struct(text, typed=False)

    def demangled_typed(self, text: str) -> C:
        """From the same struct whose values carry their type: `(c10::ScalarType)5, (int)128,
        (bool)1`.  The types' names do not matter; some values may go without."""
        return self._from_struct(text, typed=True)

    def _from_struct(self, text: str, *, typed: bool) -> C:
        name = self.config_class.__name__
        structs = list(self._struct.finditer(text))
        if not structs:
            raise InvalidConfig(f"no {name}{{…}} in {_show(text)}")
        configs = []
        for struct in structs:
            if not struct[2]:
                raise InvalidConfig(f"{name}{{ is not closed in {_show(text)}")
            check_after_struct(text, struct.end())
            if typed and "(" not in struct[1]:
                raise InvalidConfig(f"no value with a type, like (int)128, in {_show(struct[0])}")
            values = _split_values(struct[1])
            if typed:
                values = [_without_cast(v) for v in values]
            configs.append(self._from_values(values, struct[0]))
        return _only(configs, text)

    def _from_values(self, values: Sequence[str], where: str) -> C:
        required = sum(f.default is MISSING for f in self.fields)
        if not required <= len(values) <= len(self.fields):
            belong = " to ".join(str(n) for n in sorted({required, len(self.fields)}))
            raise InvalidConfig(
                f"{_count(len(values), 'value')} where {belong} belong in {_show(where)}"
            )
        fields = zip(self.fields, values, strict=False)
        return self.config_class(**{f.name: _struct_value(f, v) for f, v in fields})

    # Short form ---------------------------------------------------------------------------

    def short_form(self, text: str, *, d_head: int = 128) -> C:
        """From the short form: alone, quoted, or as a cell of a table or CSV row.

        Spaces around commas and `+` do not matter.  A tuple one number short has no head
        dimension and gets `d_head`.  Words stand in any order, each at most once.  Raises
        InvalidConfig for any other text.
        """
        heads = _heads(text)
        if not heads:
            if _TUPLE.search(text):
                raise InvalidConfig(f"no ':' and words after the parentheses in {_show(text)}")
            raise InvalidConfig(f"no config in {_show(text)}; write it like {EXAMPLE!r}")
        starts = [head.start() for head in heads]
        parts = zip(heads, [0, *starts], [*starts[1:], len(text)], strict=False)
        configs = []
        for head, before, end in parts:
            configs.append(self._one_short_form(text[:end], head, d_head))
            check_before(text[before : head.start()], self.family)
        return _only(configs, text)

    def _one_short_form(self, text: str, head: re.Match[str], d_head: int) -> C:
        words = words_after(text, head.end())
        values = self._tuple_values(head[1], d_head)
        values |= self._word_values(words[0].strip())
        check_after(text[words.end() :], self._is_word)
        return self.config_class(**values)

    def _tuple_values(self, inside: str, d_head: int) -> dict[str, Any]:
        texts = [t.strip() for t in inside.split(",")]
        fields = self._tuple
        values: dict[str, Any] = {}
        if len(texts) == len(fields) - 1:
            fields = [f for f in fields if f.name != "d_head"]
            values["d_head"] = d_head
        if len(texts) != len(fields):
            names = ", ".join(f.name for f in self._tuple)
            raise InvalidConfig(
                f"{_count(len(texts), 'value')} where {len(self._tuple)} belong ({names}; d_head "
                f"may be left out) in {_show(f'({inside})')}"
            )
        for f, value in zip(fields, texts, strict=True):
            is_dtype = python_type(f) is DType
            values[f.name] = DType.from_string(value) if is_dtype else _integer(f.name, value)
        return values

    def _word_values(self, words: str) -> dict[str, Any]:
        """The values that the words after the colon give; flags not named are False."""
        seen: dict[str, Any] = {}
        for word in (w.strip() for w in words.split("+")) if words else ():
            if not word:
                raise InvalidConfig(f"an empty word next to a '+' in {_show(words)}")
            for name, value in self._read_word(word).items():
                if name in seen:
                    raise InvalidConfig(f"{_show(word)} is given a second time in {_show(words)}")
                seen[name] = value
        if self._tiles and self._tiles[0].name not in seen:
            raise InvalidConfig(f"no {TILES_WORD} among the words {_show(words)}")
        return {f.name: False for f in self._flags.values()} | seen

    def _read_word(self, word: str) -> Mapping[str, Any]:
        if word in self._flags:
            return {self._flags[word].name: True}
        if word in self._choices:
            field, member = self._choices[word]
            return {field.name: member}
        if self._tiles and (tiles := _TILES.fullmatch(word)):
            numbers = tiles[1].split("_")[1:]
            if len(numbers) != len(self._tiles):
                raise InvalidConfig(
                    f"{_show(word)} has {_count(len(numbers), 'number')}; "
                    f"write it like {TILES_WORD}"
                )
            return {f.name: _integer(f.name, n) for f, n in zip(self._tiles, numbers, strict=True)}
        if (numbered := _NUMBERED.fullmatch(word)) and numbered[1] in self._numbers:
            field = self._numbers[numbered[1]]
            return {field.name: _integer(field.name, numbered[2])}
        raise unknown_word(word, self._vocabulary(), self._knows)

    def _is_word(self, word: str) -> bool:
        return self._knows(word) or nearest(word, self._vocabulary()) is not None

    def _knows(self, word: str) -> bool:
        try:
            return bool(self._read_word(word)) if " " not in word else False
        except InvalidConfig:
            return False

    def _vocabulary(self) -> dict[str, str]:
        """How each word is shown, and how it looks with every number as 0."""
        words = {w: w for w in (*self._flags, *self._choices)}
        if self._tiles:
            words[TILES_WORD] = "load_0_0_0_tiles"
        return words | {f"{w}_<n>": f"{w}_0" for w in self._numbers}


# For every family's short form ----------------------------------------------------------------


def words_after(text: str, place: int) -> re.Match[str]:
    """What a cell has from `place` on, where the words of a short form stand."""
    words = _WORDS.match(text, place)
    assert words is not None  # the pattern matches the empty string too
    return words


def check_before(before: str, family: str) -> None:
    """Within its cell nothing stands before a short form but quotes and the family's name.
    Raises InvalidConfig."""
    cell = _LAST_CELL.search(before)
    beside = (cell[0] if cell else "").strip().strip(_QUOTES).strip()
    if beside not in ("", f"{family}:"):
        raise InvalidConfig(f"unexpected {_show(beside)} before the config")


def check_after(after: str, is_word: Callable[[str], bool]) -> None:
    """What follows the words of a short form is other cells, never more of the config: raises
    InvalidConfig for text behind its quotes, and for a cell with something like a word."""
    rest = after.lstrip(_QUOTES + " ")
    if rest and rest[0] not in _CELL_ENDS:
        raise InvalidConfig(f"unexpected {_show(rest)} after the config")
    for separator, cell in _CELL.findall(rest):
        for word in re.split(r"[^\w-]+", cell):
            if word and is_word(word):
                raise InvalidConfig(f"{_show(word)} stands after {separator!r}; join words by '+'")


def check_after_struct(text: str, end: int) -> None:
    """A struct ends where a template argument or a literal ends.  Raises InvalidConfig."""
    if _AFTER_STRUCT.match(text, end) is None:
        raise InvalidConfig(f"unexpected {_show(text[end:])} after the config")


def unknown_word(
    word: str, vocabulary: Mapping[str, str], knows: Callable[[str], bool]
) -> InvalidConfig:
    """The error for a word that is not in the vocabulary: what it may have been meant as."""
    first, _, rest = word.partition(" ")
    if rest and knows(first):
        return InvalidConfig(f"unexpected {_show(rest.strip())} after {_show(first)}")
    near = nearest(word, vocabulary)
    hint = f"did you mean {near}?" if near else f"known words: {', '.join(vocabulary)}"
    return InvalidConfig(f"unknown word {_show(word)}; {hint}")


def nearest(word: str, vocabulary: Mapping[str, str]) -> str | None:
    """The word most like `word`.  `vocabulary` has how each is shown, and how it looks with every
    number as 0."""
    shown = {looks: shows for shows, looks in vocabulary.items()}
    looks = re.sub(r"[0-9]+", "0", word.lower())
    near = difflib.get_close_matches(looks, shown, n=1, cutoff=0.7)
    return shown[near[0]] if near else None


def is_whole(text: str) -> bool:
    """Whether a text is one cell: a config by itself, in quotes or not, and no row of a table."""
    bare = text.strip()
    while len(bare) > 1 and bare[0] in _QUOTES and bare[-1] in _QUOTES:
        bare = bare[1:-1].strip()
    outside = re.sub(r"\([^()]*\)", "()", bare)
    return not set(outside) & set(_QUOTES + _CELL_ENDS)


# Parts ----------------------------------------------------------------------------------------


def _heads(text: str) -> list[re.Match[str]]:
    """Where short forms begin: parentheses with commas, and a colon."""
    return [head for head in _HEAD.finditer(text) if "," in head[1]]


def _only(configs: Sequence[C], text: str) -> C:
    """The one config that all of `configs` are."""
    if any(c != configs[0] for c in configs[1:]):
        raise InvalidConfig(f"more than one config in {_show(text)}; give one")
    return configs[0]


def _split_values(inside: str) -> list[str]:
    """Split at the commas that stand outside parentheses and angle brackets."""
    parts, depth = [""], 0
    for char in inside:
        depth += (char in "(<") - (char in ")>")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return [p.strip() for p in parts] if inside.strip() else []


def _without_cast(value: str) -> str:
    """`((anonymous namespace)::DType)5` → `5`; a value without a cast is kept."""
    if not value.startswith("("):
        return value
    depth = 0
    for i, char in enumerate(value):
        depth += (char == "(") - (char == ")")
        if depth == 0:
            return value[i + 1 :].strip() if value[1:i].strip() else value
    return value


def _struct_value(f: Field[Any], text: str) -> Any:
    kind = python_type(f)
    if kind is DType:
        return DType.from_string(text.rpartition("::")[2])
    if kind is bool:
        named: dict[str, bool] = {"0": False, "1": True, "false": False, "true": True}
        if text not in named:
            raise InvalidConfig(f"{f.name} must be 0, 1, true or false, not {_show(text)}")
        return named[text]
    if issubclass(kind, Enum):
        return _member(f, kind, text.rpartition("::")[2])
    return _integer(f.name, text)


def _member(f: Field[Any], kind: type[Enum], text: str) -> Enum:
    """A choice's value by its name or number."""
    if text in kind.__members__:
        return kind[text]
    try:
        return kind(_integer(f.name, text))
    except ValueError:
        raise InvalidConfig(f"{f.name} cannot be {_show(text)}") from None


def _integer(name: str, text: str) -> int:
    if re.fullmatch(r"-[0-9]+", text):
        raise InvalidConfig(f"{name} must not be negative: {text}")
    if not re.fullmatch(r"[0-9]+", text) or len(text) > _MAX_DIGITS:
        raise InvalidConfig(
            f"{name} must be a whole number of at most {_MAX_DIGITS} digits, not {_show(text)}"
        )
    return int(text)


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _show(text: str) -> str:
    """`text` in quotes, on one line, not longer than a line of a terminal holds."""
    line = " ".join(text.split())
    return f'"{line if len(line) <= 100 else line[:99] + "…"}"'
