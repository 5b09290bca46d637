"""The C++ structs of the configs and of launch plans, generated from the Python classes.

`python -m fa_tune.export.config_headers`, run in a source checkout, rewrites every copy: one
for the kernels, one for the C++ library.  The text includes no header, so NVRTC and a host compiler
(C++20) both take it as it is.  A family adds itself to `HEADERS`.
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

from fa_tune.core.errors import FaTuneError, StorageError
from fa_tune.core.files import replace_files
from fa_tune.core.workload import DType
from fa_tune.export.types_header import TYPES_HEADER, types_header
from fa_tune.families.decode.config import DecodeConfig
from fa_tune.families.fields import cpp_literal, cpp_type, python_type
from fa_tune.families.sm80.config import FlashForwardKernelConfig
from fa_tune.families.sm90.config import Sm90Config

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

_D_V = """\

    // Head dimension of V and O.
    FA_HOST_DEVICE constexpr int d_v() const { return d_head_v != 0 ? d_head_v : d_head; }
"""

_O_APART = """\

    // Whether O leaves by a place of its own, because Q of the next tile comes before O is there.
    FA_HOST_DEVICE constexpr bool o_apart() const { return cross_tile_overlap && q_stages == 1; }
"""

_SM90_METHODS = """\

    // Query rows per CTA.
    FA_HOST_DEVICE constexpr int B_r() const { return 64 * mma_warpgroups; }

"""

# What a system reserves of shared memory for every resident CTA; see fa_tune/core/arch.py.
_SM80_METHODS = """\

    // Dynamic shared memory of one CTA in bytes: Q (later O), and kv_stages blocks of K and of V.
    // With ping_pong O has rows of its own, rows are whole panels of 64 columns, and tags and
    // barriers follow.
    FA_HOST_DEVICE constexpr int smem_bytes(int elem_size = 2) const {
        const int kv_rows = kv_stages * B_c, more = d_head > d_v() ? d_head : d_v();
        const int panels = (d_head + 63) / 64 + (d_v() + 63) / 64;
        return ping_pong ? (B_r + kv_rows) * panels * 64 * elem_size + 1024
                         : (B_r * more + kv_rows * (d_head + d_v())) * elem_size;
    }

    // CTAs that max_smem_bytes of shared memory per multiprocessor hold, each with the 1 KiB
    // that the system adds to it.  Registers and threads may allow fewer.
    FA_HOST_DEVICE constexpr int num_ctas_per_sm(int max_smem_bytes) const {
        return max_smem_bytes / (smem_bytes() + 1024);
    }

"""


@dataclass(frozen=True)
class Header:
    """A family's struct: the config class, whose fields are `config_fields`, the C++ methods
    that go with it, and the files that hold it."""

    family: str
    config_class: type[Any]
    methods: str
    files: tuple[str, ...]


SM80 = Header(
    "sm80",
    FlashForwardKernelConfig,
    _D_V + _SM80_METHODS,
    ("kernels/sm80/fwd/config.cuh", "csrc/flash_forward_kernel_config.h"),
)
SM90 = Header(
    "sm90",
    Sm90Config,
    _O_APART + _D_V.removeprefix("\n") + _SM90_METHODS,
    ("kernels/sm90/fwd/config.cuh",),
)
DECODE = Header("decode", DecodeConfig, _D_V + "\n", ("kernels/decode/config.cuh",))
HEADERS = (SM80, SM90, DECODE)
# How a header includes DType, by the folder that both are in.
DTYPE_INCLUDES = {"kernels": "common/dtype.cuh", "csrc": "dtype.h"}
DTYPE_FILES = tuple(f"{folder}/{name}" for folder, name in DTYPE_INCLUDES.items())
GENERATED_FILES = (
    *DTYPE_FILES,
    *(name for header in HEADERS for name in header.files),
    TYPES_HEADER,
)


def dtype_header() -> str:
    """The text of the header of `DType`, which all families share."""
    return f"{_DTYPE}{_enum(DType)}}}  // namespace fa_tune\n"


def struct_header(
    config_class: type[Any] = FlashForwardKernelConfig,
    header: Header = SM80,
    dtype: str = DTYPE_INCLUDES["csrc"],
) -> str:
    """The text of a family's header: the enums of its fields, but for `DType`, which it includes
    as `dtype`, and `config_class` as a struct with the same fields in the same order, compared in
    that order."""
    name = config_class.__name__
    fields = dataclasses.fields(config_class)
    enums = dict.fromkeys(t for f in fields if issubclass(t := python_type(f), Enum))
    enums.pop(DType, None)
    parts = [
        _HEAD.replace("{family}", header.family).replace("{dtype}", dtype),
        *(_enum(kind) for kind in enums),
        f"struct {name} {{\n",
        *(_member(f) for f in fields),
        header.methods,
        f"    constexpr bool operator==(const {name}& other) const = default;\n",
        f"    FA_HOST_DEVICE constexpr bool operator<(const {name}& other) const {{\n",
        *_less_than([f.name for f in fields]),
        "    }\n",
        "};\n",
        "\n}  // namespace fa_tune\n",
        "\n#undef FA_HOST_DEVICE\n",
    ]
    return "".join(parts)


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
    texts = dict.fromkeys(DTYPE_FILES, dtype_header())
    for header in HEADERS:
        for name in header.files:
            include = DTYPE_INCLUDES[name.partition("/")[0]]
            texts[name] = struct_header(header.config_class, header, include)
    texts[TYPES_HEADER] = types_header()
    return texts


def write_generated_files(root: Path) -> list[Path]:
    """Rewrite all copies under `root`, the source checkout, or none of them; raises
    StorageError."""
    if not (root / "kernels" / "sm80").is_dir() or not (root / "csrc").is_dir():
        raise StorageError(f"{root} is not a source checkout: it has no kernels/sm80 and csrc")
    contents = {root / name: text.encode() for name, text in generated_texts().items()}
    try:
        for path in contents:
            path.parent.mkdir(parents=True, exist_ok=True)
        replace_files(contents)
    except OSError as e:
        raise StorageError(f"cannot write {e.filename2 or e.filename}: {e.strerror}") from e
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
