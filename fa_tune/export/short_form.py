"""`short_form` of each family's config class in C++, from the fields that Python's is made of."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from enum import Enum
from typing import Any

from fa_tune.families.fields import cpp_literal, python_type

_PLACE = re.compile(r"\{c\.([\w.]+)\}")


def cpp_short_form(config_class: type[Any]) -> str:
    """The function for one class, `std::string short_form(const Config& c)`."""
    lines = [f"inline std::string short_form(const {config_class.__name__}& c) {{"]
    lines.append("    std::string words;")
    lines += [f"    {line}" for line in _words(config_class)]
    lines.append(f"    return {_head(config_class)} + words;")
    return "\n".join([*lines, "}", ""])


def _head(config_class: type[Any]) -> str:
    """What stands before the words, as a C++ expression."""
    names = {f.name for f in dataclasses.fields(config_class)}
    parts: list[str] = []
    for i, part in enumerate(_PLACE.split(f"{config_class.HEAD}:")):
        if i % 2 == 0:
            parts.append(json.dumps(part))
        elif part == "dtype.name":
            parts.append("dtype_name(c.dtype)")
        else:
            parts.append(f"std::to_string(c.{part}{'' if part in names else '()'})")
    return " + ".join([*parts, '(words.empty() ? "" : " ")'])


def _words(config_class: type[Any]) -> Iterator[str]:
    tiles: list[str] = []
    for f in dataclasses.fields(config_class):
        meta, value = f.metadata, f"c.{f.name}"
        match meta["place"]:
            case "flag":
                yield f'if ({value}) add_word(words, "{meta["word"]}");'
            case "count":
                yield _numbered(meta["word"], value)
            case "number":
                yield f"if ({value} != {f.default}) {_numbered(meta['word'], value)}"
            case "tiles":
                tiles.append(f"std::to_string({value})")
                if len(tiles) == 3:
                    numbers = ' + "_" + '.join(tiles)
                    yield f'add_word(words, "load_" + {numbers} + "_tiles");'
            case "choice":
                for member in _choices(python_type(f)):
                    if member != f.default:
                        word = member.word
                        yield f'if ({value} == {cpp_literal(member)}) add_word(words, "{word}");'


def _numbered(word: str, value: str) -> str:
    return f'add_word(words, "{word}_" + std::to_string({value}));'


def _choices(kind: type[Any]) -> list[Any]:
    return [member for member in kind if isinstance(member, Enum)]
