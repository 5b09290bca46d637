"""`csrc/core/fa_tune_types.h`: the structs and enums of the C ABI, from `build.native.abi` and
`families.plan`."""

from __future__ import annotations

import ctypes
import inspect
import re
import textwrap
from collections.abc import Iterator
from enum import Enum
from typing import Any

from fa_tune.build.native import abi
from fa_tune.core import dtypes
from fa_tune.core.workload import DType
from fa_tune.families.plan import ENUMS, TensorRole

TYPES_HEADER = "csrc/core/fa_tune_types.h"
DTYPES_HEADER = "csrc/core/dtypes.h"

_HEAD = """\
// What the core is told of problems, tensors and compiled kernels.
// Generated from fa_tune/build/native/abi.py and fa_tune/families/plan.py by
// `python -m fa_tune.export.config_headers`; do not edit.
#pragma once

#include <stddef.h>
#include <stdint.h>

"""
_DTYPES = """\
// Element types, numbered as PyTorch numbers them.
// Generated from fa_tune/core/dtypes.py by `python -m fa_tune.export.config_headers`; do not edit.
#pragma once

#include <cstdint>

namespace fa_tune::core {

struct ElementType {
    std::int32_t number;
    const char* word;
    std::int32_t size_bytes;
    std::uint32_t tma_code;  // CUtensorMapDataType
};

constexpr ElementType kE4m3 = %s;
// Those that Q may have.
constexpr ElementType kDtypes[] = {
    %s,
};

}  // namespace fa_tune::core
"""
_C_TYPES: dict[Any, str] = {
    ctypes.c_int32: "int32_t ",
    ctypes.c_int64: "int64_t ",
    ctypes.c_uint32: "uint32_t ",
    ctypes.c_uint64: "uint64_t ",
    ctypes.c_double: "double ",
    ctypes.c_char_p: "const char* ",
    ctypes.c_void_p: "void* ",
    abi.ConstPointer: "const void* ",
    ctypes.POINTER(ctypes.c_char_p): "const char* const* ",
}
# ctypes has one name for integers of the same size.
_SIZE = (abi.KernelInfo, abi.TableInfo)
_PREFIX: dict[type[Enum], str] = {abi.Status: "FA_TUNE", TensorRole: "FA_TUNE_TENSOR"}


def types_header() -> str:
    """The text of the header."""
    parts = [_HEAD]
    enums: tuple[type[Enum], ...] = (abi.Status, DType, *ENUMS, abi.Mask, abi.Window)
    for enum in enums:
        parts += _enum(enum)
    for struct in abi.STRUCTS:
        parts += _struct(struct)
    return "".join(parts).removesuffix("\n")


def dtypes_header() -> str:
    """The text of the header of element types."""
    rows = ",\n    ".join(_row(one.element) for one in DType)
    return _DTYPES % (_row(dtypes.E4M3), rows)


def _row(one: dtypes.ElementType) -> str:
    return f'{{{one.number}, "{one.word}", {one.size_bytes}, {one.tma_code}}}'


def c_name(kind: type[Any]) -> str:
    """`fa_tune_launch_plan` of LaunchPlan."""
    name = kind.__name__.removesuffix("Struct")
    return f"fa_tune_{re.sub(r'(?<=[a-z])(?=[A-Z])', '_', name).lower()}"


def _comment(text: str, indent: str = "") -> Iterator[str]:
    for paragraph in inspect.cleandoc(text).splitlines():
        for line in textwrap.wrap(paragraph, width=97 - len(indent)) or [""]:
            yield f"{indent}// {line}".rstrip() + "\n"


def _enum(kind: type[Enum]) -> Iterator[str]:
    name = "fa_tune_dtype" if kind is DType else c_name(kind)
    prefix = _PREFIX.get(kind, name.upper())
    yield from _comment(kind.__doc__ or "")
    yield f"typedef enum {name} {{\n"
    for member in kind.__members__.values():
        yield f"    {prefix}_{member.name} = {member.value},\n"
    if kind is TensorRole:
        yield f"    FA_TUNE_TENSORS = {len(kind)},\n"
    yield f"}} {name};\n\n"


def _struct(kind: type[abi.Struct]) -> Iterator[str]:
    name = c_name(kind)
    yield from _comment(kind.__doc__ or "")
    yield f"typedef struct {name} {{\n"
    for field, c_type, *_ in kind._fields_:
        yield from _comment(kind.DOCS.get(field, ""), "    ") if field in kind.DOCS else ()
        yield f"    {_field(field, c_type, kind)};\n"
    yield f"}} {name};\n\n"


def _field(name: str, kind: Any, struct: type[abi.Struct]) -> str:
    if struct in _SIZE and kind is ctypes.c_size_t:
        return f"size_t {name}"
    if issubclass(kind, ctypes.Array):
        length = "FA_TUNE_TENSORS" if struct is abi.Tensors else kind._length_
        return f"{_field(name, kind._type_, struct)}[{length}]"
    if found := _C_TYPES.get(kind):
        return f"{found}{name}"
    if issubclass(kind, ctypes.Structure):
        return f"{c_name(kind)} {name}"
    return f"const {c_name(kind._type_)}* {name}"
