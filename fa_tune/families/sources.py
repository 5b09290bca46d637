"""The files that a kernel is made of, and what of them is code."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path, PurePosixPath

from fa_tune.core import paths
from fa_tune.core.errors import ToolMissing

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)
_INCLUDE_LINE = re.compile(r'#include "([^"]+)"')
_TIGHT = frozenset("()[]{},;")  # white space beside them means nothing, but in a directive
_TOKEN = re.compile(
    r"""
      (?P<comment>//(?:\\\n|[^\n])*|/\*.*?\*/)
    | (?P<raw>\b(?:u8|u|U|L)?R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)")
    | (?P<text>"(?:\\.|[^"\\\n])*"|(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])*')
    | (?P<splice>\\\n)
    | (?P<newline>\n)
    | (?P<space>[^\S\n]+)
    | (?P<other>\w+|.)
    """,
    re.DOTALL | re.VERBOSE,
)

_Part = tuple[str, bool]  # a text, and whether it is a literal


def closure(*entries: str, root: Path | None = None) -> Mapping[str, str]:
    """Include name -> text of `entries` (`sm80/entry.cu`) and of what they include, directly
    or not.  A file in a shared folder that nobody includes is not among them, so adding it
    changes no family's hash.

    Names are relative to `root`, the `kernels/` folder if None.  Raises ToolMissing if a file
    is not there, which an installation that is complete cannot lack.
    """
    folder = root or paths.kernels_dir()
    found: dict[str, str] = {}
    todo = list(entries)
    while todo:
        name = str(PurePosixPath(todo.pop()))
        if name in found:
            continue
        try:
            found[name] = (folder / name).read_text(encoding="utf-8")
        except OSError as error:
            raise ToolMissing(
                f"the kernel source {folder / name} cannot be read: {error.strerror}"
            ) from None
        todo += INCLUDE.findall(found[name])
    return dict(sorted(found.items()))


def code_sha256(files: Mapping[str, str]) -> str:
    """One hash over the code in `files`, include name -> text: another comment, other white
    space, another name or folder of a file leaves it the same."""
    return _code_sha256(tuple(files.items()))


@lru_cache(maxsize=16)  # every attempt asks for its family's, which takes a tenth of a second
def _code_sha256(contents: tuple[tuple[str, str], ...]) -> str:
    files = dict(contents)
    included = {name for text in files.values() for name in INCLUDE.findall(text)}
    entries = [name for name in files if name not in included] or list(files)
    units = sorted(flattened(files, entry) for entry in entries)
    digest = hashlib.sha256()
    for unit in units:
        digest.update(len(unit).to_bytes(8, "big"))
        digest.update(unit.encode())
    return digest.hexdigest()


def flattened(files: Mapping[str, str], entry: str) -> str:
    """The translation unit `entry` as one text: included files in their places, each
    `#pragma once` file once; no comments, white space collapsed, each directive on a line."""
    return "\n".join(_merged(_resolved(files, entry, set(), ())))


def _resolved(
    files: Mapping[str, str], name: str, seen: set[str], above: tuple[str, ...]
) -> Iterator[str]:
    for line in code_lines(files[name]):
        if line == "#pragma once":
            seen.add(name)
            continue
        found = _INCLUDE_LINE.fullmatch(line)
        target = found[1] if found else ""
        if target not in files:
            yield line
        elif target not in seen and target not in (*above, name):
            yield from _resolved(files, target, seen, (*above, name))


def _merged(lines: Iterator[str]) -> Iterator[str]:
    """Neighbouring lines that are no directives joined: where a file ends is nothing."""
    run = ""
    for line in lines:
        if not line.startswith("#"):
            apart = run and run[-1] not in _TIGHT and line[0] not in _TIGHT
            run += f" {line}" if apart else line
            continue
        if run:
            yield run
        run = ""
        yield line
    if run:
        yield run


def code_lines(source: str) -> Iterator[str]:
    """The source without comments and needless white space: directives, and between them the
    code of as many lines as there are.  Strings stay as they are."""
    code: list[_Part] = []
    for directive, parts in _logical_lines(source):
        if not directive:
            code += [*parts, (" ", False)]
            continue
        if text := _collapsed(code, tight=True):
            yield text
        code = []
        yield re.sub(r"^# ", "#", _collapsed(parts, tight=False))
    if text := _collapsed(code, tight=True):
        yield text


def _logical_lines(source: str) -> Iterator[tuple[bool, list[_Part]]]:
    """(whether it is a directive, its parts) of each line, continued ones joined."""
    parts: list[_Part] = []
    for found in _TOKEN.finditer(source):
        match found.lastgroup:
            case "newline":
                yield _is_directive(parts), parts
                parts = []
            case "comment" | "space":
                parts.append((" ", False))
            case "splice":
                pass
            case "raw":
                parts.append((found[0], True))
            case "text":
                parts.append((found[0].replace("\\\n", ""), True))
            case _:
                parts.append((found[0], False))
    yield _is_directive(parts), parts


def _is_directive(parts: list[_Part]) -> bool:
    return next((text for text, _ in parts if text != " "), "").startswith("#")


def _collapsed(parts: list[_Part], *, tight: bool) -> str:
    """One text; `tight`: no blank beside brackets, commas and semicolons either."""
    out: list[str] = []
    last = " "
    for text, literal in parts:
        if text == " " and not literal:
            if last == " " or (tight and last in _TIGHT):
                continue
        elif tight and not literal and text in _TIGHT and last == " " and out:
            out.pop()
        out.append(text)
        last = "" if literal else text
    return "".join(out).strip(" ")
