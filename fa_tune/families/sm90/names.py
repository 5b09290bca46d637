"""From text to a config of the `sm90` family.

short form    sm90(FP16, 128, 128x176): stages_2+pingpong+overlap
demangled     …<fa_tune::Sm90Config{5, 128, 2, 176, 2, 1, 1, …, 1, 0}, …>…
with types    …<fa_tune::Sm90Config{(fa_tune::DType)5, (int)128, …, (bool)1, …}, …>…

Older words and structs (former.toml) are read as well and give the same config.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import DType
from fa_tune.families import former
from fa_tune.families.fields import python_type
from fa_tune.families.name_parser import (
    check_after,
    check_after_struct,
    check_before,
    nearest,
    unknown_word,
    words_after,
)
from fa_tune.families.sm90.config import GROUP_ROWS, Sm90Config

_SHORT_FORM = re.compile(
    r"\bsm90\s*\(\s*(?P<dtype>\w+)\s*,\s*(?:(?P<d_head>\d+)\s*,\s*)?"
    r"(?P<B_r>\d+)\s*x\s*(?P<B_c>\d+)\s*(?:,\s*(?P<consumers>\d+)\s*)?\)\s*:"
)
_HEAD = re.compile(r"sm90\s*\(")
_STRUCT = re.compile(r"\bSm90Config\s*\{([^{}]*)\}")
_NUMBERED = re.compile(r"(\w+?)_([0-9]{1,9})")
_EXAMPLE = "sm90(FP16, 128, 128x128): stages_2+pingpong+overlap"
_MOST = 10**9
_FLAGS = {"0": False, "1": True, "false": False, "true": True}
FEWEST_VALUES = 15  # of a struct with the fields in this order; those after them came later


def parse(text: str, *, d_head: int = 128) -> Sm90Config:
    """The config of a short form, alone or as a cell of a row, or of a demangled kernel name.

    `d_head` serves a short form without it.  Raises InvalidConfig for anything else, for more
    than one config, for a word that is unknown, given twice or missing, and for a knob that was
    removed, which it names.
    """
    structs = list(_STRUCT.finditer(text))
    heads = len(_HEAD.findall(text))
    if heads + len(structs) > 1:
        raise InvalidConfig(f"more than one config in {_shown(text)}; give one")
    if structs:
        check_after_struct(text, structs[0].end())
        return _from_struct(structs[0][1], text)
    found = _SHORT_FORM.search(text)
    if found is None:
        raise InvalidConfig(f"no sm90 config in {_shown(text)}; write it like {_EXAMPLE!r}")
    words = words_after(text, found.end())
    check_before(text[: found.start()], "sm90")
    config = _from_short_form(found, words[0], text, d_head)
    check_after(text[words.end() :], _is_word)
    return config


def _from_short_form(found: re.Match[str], words: str, text: str, d_head: int) -> Sm90Config:
    values: dict[str, Any] = {
        "dtype": DType.from_string(found["dtype"]),
        "d_head": _number(found["d_head"], text) if found["d_head"] else d_head,
        "mma_warpgroups": _warpgroups(found, text),
        "B_c": _number(found["B_c"], text),
    }
    given = [word.strip() for word in words.split("+")] if words.strip() else []
    for word in _translated(given, values["d_head"], _shown(text)):
        name, value = _meaning(word, text)
        if name in values:
            raise InvalidConfig(f'"{word}" in {_shown(text)} says again what another word says')
        values[name] = value
    if "stages" not in values:
        raise InvalidConfig(f"no stages_<n> among the words of {_shown(text)}")
    return Sm90Config(**values)


def _translated(words: Sequence[str], d_head: int, shown: str) -> Iterator[str]:
    """The present words for these; raises InvalidConfig, naming it, for a removed knob: no kernel
    of today does what it did."""
    former_words = former.file_of("sm90")["words"]
    for word in words:
        number = _NUMBERED.fullmatch(word)
        if word in former_words["removed"] or (
            number and number[1] in former_words["removed_numbers"]
        ):
            knob = former_words["removed"].get(word, word)
            raise InvalidConfig(f"the knob {knob} in {shown} was removed: it was never fastest")
        if number and number[1] in former_words["renamed_numbers"]:
            yield f"{former_words['renamed_numbers'][number[1]]}_{number[2]}"
        else:
            yield former_words["renamed"].get(word, word)
        if word == "trusting_rescale" and d_head in former_words["single_loop_heads"]:
            yield "single_loop"


def _older_short_form(struct: Mapping[str, Any], values: Sequence[str], shown: str) -> str:
    """The older short form of an older struct's values, which are without their types."""
    fields = struct["fields"]
    named = dict(zip(fields, (v.rpartition("::")[2] for v in values), strict=True))
    dtype = {"5": "FP16", "15": "BF16"}.get(named["dtype"], named["dtype"])
    words = [f"stages_{named['stages']}"]
    for name in fields[fields.index("q_stages") :]:
        value, choices = named[name], struct["words"].get(name, {})
        by_number = dict(enumerate(choices.values()))
        number = int(value) if value.isdigit() else -1
        if value in choices or number in by_number:
            words.append(choices[value] if value in choices else by_number[number])
        elif name in struct["usual"]:
            words.append("" if value == struct["usual"][name] else f"{name}_{value}")
        elif not choices and value in ("1", "true"):
            words.append(name)
        elif choices or value not in ("0", "false"):
            raise InvalidConfig(f"{name} cannot be {value[:40]} in {shown}")
    tile = f"{named['B_r']}x{named['B_c']}, {named['consumers']}"
    return f"sm90({dtype}, {named['d_head']}, {tile}): {'+'.join(filter(None, words))}"


def _warpgroups(found: re.Match[str], text: str) -> int:
    """Consumer warpgroups by the query rows; an older short form has both."""
    rows = _number(found["B_r"], text)
    consumers = _number(found["consumers"], text) if found["consumers"] else rows // GROUP_ROWS
    if rows != GROUP_ROWS * consumers:
        raise InvalidConfig(
            f"{rows} query rows in {_shown(text)} must be {GROUP_ROWS} for each consumer warpgroup"
        )
    return consumers


def _meaning(word: str, text: str) -> tuple[str, Any]:
    """The field that a word of the short form sets, and to what."""
    meant = _read_word(word)
    if meant is not None:
        return meant
    if not word:
        raise InvalidConfig(f"an empty word next to a '+' in {_shown(text)}")
    raise unknown_word(word, _vocabulary(), _knows)


def _read_word(word: str) -> tuple[str, Any] | None:
    numbered = _NUMBERED.fullmatch(word)
    for f in dataclasses.fields(Sm90Config):
        meta = f.metadata
        match meta["place"]:
            case "flag" if word == meta["word"]:
                return f.name, True
            case "count" | "number" if numbered and numbered[1] == meta["word"]:
                return f.name, int(numbered[2])
            case "choice":
                for member in meta["type"]:
                    if word == member.word and member is not f.default:
                        return f.name, member
    return None


def _knows(word: str) -> bool:
    return _read_word(word) is not None


def _is_word(word: str) -> bool:
    return _knows(word) or nearest(word, _vocabulary()) is not None


def _vocabulary() -> dict[str, str]:
    """How each word is shown, and how it looks with every number as 0."""
    words: dict[str, str] = {}
    for f in dataclasses.fields(Sm90Config):
        meta = f.metadata
        match meta["place"]:
            case "flag":
                words[meta["word"]] = meta["word"]
            case "count" | "number":
                words[f"{meta['word']}_<n>"] = f"{meta['word']}_0"
            case "choice":
                words |= {member.word: member.word for member in meta["type"] if member.word}
    return words


def _from_struct(body: str, text: str) -> Sm90Config:
    fields = dataclasses.fields(Sm90Config)
    parts = [re.sub(r"^\(\s*[\w:]+\s*\)", "", part.strip()).strip() for part in body.split(",")]
    older = former.file_of("sm90")["struct"]
    if len(parts) == len(older["fields"]) and all(re.fullmatch(r"[\w:]+", p) for p in parts):
        return parse(_older_short_form(older, parts, _shown(text)))
    if not FEWEST_VALUES <= len(parts) <= len(fields):
        raise InvalidConfig(
            f"Sm90Config has {len(fields)} values, not the {len(parts)} in {_shown(text)}"
        )
    values: list[Any] = []
    for f, part in zip(fields, parts, strict=False):
        kind = python_type(f)
        member = part.rpartition("::")[2]
        if kind is bool:
            if part not in _FLAGS:
                raise InvalidConfig(f"{f.name} must be 0, 1, true or false in {_shown(text)}")
            values.append(_FLAGS[part])
        elif "::" in part and member in getattr(kind, "__members__", {}):
            values.append(kind[member])  # type: ignore[index]
        else:
            values.append(_value(kind, part, f.name, text))
    return Sm90Config(*values)


def _value(kind: type, part: str, name: str, text: str) -> Any:
    try:
        return kind(_number(part, text))
    except ValueError:
        raise InvalidConfig(f"{name} cannot be {part[:40]} in {_shown(text)}") from None


def _number(digits: str, text: str) -> int:
    if not digits.isascii() or not digits.isdigit() or len(digits) > 9:
        raise InvalidConfig(
            f"{digits[:40]!r} is not a number between 0 and {_MOST - 1} in {_shown(text)}"
        )
    return int(digits)


def _shown(text: str) -> str:
    shown = " ".join(text.split())
    return f'"{shown if len(shown) <= 100 else shown[:99] + "…"}"'
