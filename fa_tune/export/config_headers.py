"""The C++ structs of the configs and of launch plans, generated from the Python classes.

`python -m fa_tune.export.config_headers`, run in a source checkout, rewrites every copy: one
for the kernels, one for the C++ library.  The text includes no header, so NVRTC and a host compiler
(C++20) both take it as it is.
"""

from __future__ import annotations

import dataclasses
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from fa_tune import families
from fa_tune.core.errors import FaTuneError, StorageError
from fa_tune.core.files import replace_files
from fa_tune.core.workload import DType
from fa_tune.export.types_header import DTYPES_HEADER, TYPES_HEADER, dtypes_header, types_header
from fa_tune.families.fields import cpp_literal, cpp_type, python_type
from fa_tune.families.template import TemplateFamily

LINE_WIDTH = 100  # of the generated text

_HEAD = """\
// One point of the {family} family's knobs, usable as a template argument.
// Generated from fa_tune/families/{family}/config.py by
// `python -m fa_tune.export.config_headers`; do not edit.
#pragma once

#include "{dtype}"

#ifdef __CUDACC__  // nvcc and NVRTC
#define FA_HOST_DEVICE __host__ __device__
#else
#define FA_HOST_DEVICE
#endif

namespace fa_tune {

"""

_DTYPE = """\
// Element types, numbered as PyTorch numbers them.
// Generated from core/workload.py by `python -m fa_tune.export.config_headers`; do not edit.
#pragma once

namespace fa_tune {

"""


@dataclass(frozen=True)
class Header:
    """A family's struct: its config class, whose fields are `config_fields`, the file that holds it
    in an exported library, and the generated files of the checkout."""

    family: str
    config_class: type[Any]
    exported: str
    files: tuple[str, ...]


# How a header includes DType, by the folder that both are in.
DTYPE_INCLUDES = {"kernels": "common/dtype.cuh", "csrc": "dtype.h"}


def headers() -> tuple[Header, ...]:
    """Those of all families of a template."""
    found = []
    for family in families.all_families():
        if isinstance(family, TemplateFamily):
            kind, folder = family.config_class, family.entry.rpartition("/")[0]
            own = (f"csrc/{kind.CPP_HEADER}",) if kind.CPP_HEADER else ()
            files = (f"kernels/{folder}/config.cuh", *own)
            exported = kind.CPP_HEADER or f"{family.name}_config.h"
            found.append(Header(family.name, kind, exported, files))
    return tuple(found)


def dtype_header() -> str:
    """The text of the header of `DType`, which all families share."""
    return f"{_DTYPE}{_enum(DType)}}}  // namespace fa_tune\n"


def struct_header(family: str, config_class: type[Any], dtype: str = DTYPE_INCLUDES["csrc"]) -> str:
    """The text of a family's header: the enums of its fields, but for `DType`, which it includes
    as `dtype`, and `config_class` as a struct with the same fields in the same order, compared in
    that order."""
    name = config_class.__name__
    fields = dataclasses.fields(config_class)
    enums = dict.fromkeys(t for f in fields if issubclass(t := python_type(f), Enum))
    enums.pop(DType, None)
    return f"""\
{_HEAD.replace("{family}", family).replace("{dtype}", dtype)}\
{"".join(map(_enum, enums))}\
struct {name} {{
{"".join(map(_member, fields))}\
{config_class.CPP_METHODS}\
    constexpr bool operator==(const {name}& other) const = default;
    FA_HOST_DEVICE constexpr bool operator<(const {name}& other) const {{
{"".join(_less_than([f.name for f in fields]))}\
    }}
}};

}}  // namespace fa_tune

#undef FA_HOST_DEVICE
"""


def _enum(kind: type[Enum]) -> str:
    members = [f"{member.name} = {member.value}" for member in kind]
    head = f"enum class {kind.__name__} : int {{"
    line = f"{head} {', '.join(members)} }};\n\n"
    if len(line.rstrip()) <= LINE_WIDTH:
        return line
    lines = [head, *(f"    {member}," for member in members), "};"]
    return "\n".join(lines) + "\n\n"


def _member(f: Field[Any]) -> str:
    comment = textwrap.wrap(f.metadata["doc"], width=LINE_WIDTH - len("    // "))
    lines = [f"    // {line}\n" for line in comment]
    initialiser = "" if f.default is MISSING else f" = {cpp_literal(f.default)}"
    return "".join(lines) + f"    {cpp_type(f)} {f.name}{initialiser};\n"


def _less_than(names: list[str]) -> Iterator[str]:
    for name in names[:-1]:
        yield f"        if ({name} != other.{name}) {{\n"
        yield f"            return {name} < other.{name};\n"
        yield "        }\n"
    yield f"        return {names[-1]} < other.{names[-1]};\n"


def generated_texts() -> dict[str, str]:
    """File name -> text of every generated header."""
    texts = {f"{folder}/{name}": dtype_header() for folder, name in DTYPE_INCLUDES.items()}
    for header in headers():
        for name in header.files:
            include = DTYPE_INCLUDES[name.partition("/")[0]]
            texts[name] = struct_header(header.family, header.config_class, include)
    texts |= {TYPES_HEADER: types_header(), DTYPES_HEADER: dtypes_header()}
    return texts


def write_generated_files(root: Path) -> list[Path]:
    """Rewrite all copies under `root`, the source checkout, or none of them; raises
    StorageError."""
    if not (root / "kernels").is_dir() or not (root / "csrc").is_dir():
        raise StorageError(f"{root} is not a source checkout: it has no kernels and csrc")
    contents = {root / name: text.encode() for name, text in generated_texts().items()}
    try:
        for path in contents:
            path.parent.mkdir(parents=True, exist_ok=True)
        replace_files(contents)
    except OSError as e:
        raise StorageError(f"cannot write {e.filename2 or e.filename or root}: {e.strerror}") from e
    return list(contents)


def main() -> int:
    """Rewrite the copies of the checkout this package is in; returns the exit status."""
    try:
        paths = write_generated_files(Path(__file__).resolve().parents[2])
    except FaTuneError as e:
        print(f"error: {e}", file=sys.stderr)
        return e.exit_status
    for path in paths:
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
