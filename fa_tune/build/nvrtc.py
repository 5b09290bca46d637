"""NVRTC through cuda.bindings: CUDA C++ text in, a cubin or PTX and its log out.

The only file that calls NVRTC.  It needs neither a GPU nor a driver.  cuda.bindings is
imported by the first call, not with this module.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fa_tune.build.memo import remembered
from fa_tune.build.ptxas_log import first_error
from fa_tune.core.errors import NoUsableVariant, ToolMissing, first_line


@dataclass(frozen=True)
class Compiled:
    """One translation unit, compiled.

    `image` is a cubin or, for a virtual architecture (`compute_80`), PTX with its final zero;
    `lowered` maps each name expression to its mangled symbol in it; `compile_s` is the time NVRTC
    took.
    """

    image: bytes
    log: str
    lowered: Mapping[str, str]
    compile_s: float


class CompileError(NoUsableVariant):
    """The compiler refused the source or the options.  `log` is all it said."""

    def __init__(self, log: str) -> None:
        super().__init__(first_error(log) or "the compiler failed and gave no reason")
        self.log = log


def compile_source(
    source: str,
    name: str,
    headers: Mapping[str, str],
    options: Sequence[str],
    name_expressions: Sequence[str] = (),
) -> Compiled:
    """Compile `source` (called `name` in messages) with the in-memory `headers`, include
    name -> text.  Raises CompileError when the compiler refuses, ToolMissing when NVRTC is not
    there or fails for a reason of its own."""
    lib = _bindings()
    start = time.perf_counter()
    texts, includes = ([text.encode() for text in part] for part in (headers.values(), headers))
    unit = source.encode(), name.encode(), len(headers), texts, includes
    program = _checked(lib.nvrtcCreateProgram(*unit))
    try:
        for expression in name_expressions:
            _checked(lib.nvrtcAddNameExpression(program, expression.encode()))
        status = lib.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])[0]
        text = _bytes(lib.nvrtcGetProgramLogSize, lib.nvrtcGetProgramLog, program)
        # Zeros end it and, in some releases, its parts.
        log = text.decode(errors="replace").replace("\0", "").rstrip()
        errors = lib.nvrtcResult
        if status in (errors.NVRTC_ERROR_COMPILATION, errors.NVRTC_ERROR_INVALID_OPTION):
            raise CompileError(log)
        _checked((status,))
        # Asking for a name that was not added crashes some releases of the bindings.
        lowered = {
            expression: _checked(lib.nvrtcGetLoweredName(program, expression.encode())).decode()
            for expression in name_expressions
        }
        image = _bytes(lib.nvrtcGetCUBINSize, lib.nvrtcGetCUBIN, program) or _bytes(
            lib.nvrtcGetPTXSize, lib.nvrtcGetPTX, program
        )
    finally:
        lib.nvrtcDestroyProgram(program)
    return Compiled(image, log, lowered, time.perf_counter() - start)


@cache
def version() -> str:
    """NVRTC's version with its patch level, `13.0.88`; raises ToolMissing.

    The API tells only major and minor, but releases that differ in the patch level generate
    different code.  The header of any PTX states it in full.
    """
    _bindings()
    library = _library()
    if library is None:
        return _version_of_ptx()
    facts = library.stat()
    subject = f"version of {library}, {facts.st_size} bytes of {facts.st_mtime_ns} ns"
    return remembered(subject, _version_of_ptx)


def _library() -> Path | None:
    """The file of the library that is loaded; None where the system does not tell."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
            path = Path(line.split(maxsplit=5)[-1])
            if path.name.startswith("libnvrtc.so") and path.is_file():
                return path
    return None


def _version_of_ptx() -> str:
    ptx = compile_source("", "version.cu", {}, ()).image.decode(errors="replace")
    m = re.search(r"\bV(\d+\.\d+\.\d+)", ptx)
    return m[1] if m else ".".join(map(str, _checked(_bindings().nvrtcVersion())))


@cache
def supported_archs() -> tuple[str, ...]:
    """The real architectures NVRTC compiles for, `sm_75` upwards; raises ToolMissing.

    Architecture-specific forms (`sm_90a`) exist where the plain one does and are not listed.
    """
    return tuple(f"sm_{number}" for number in _checked(_bindings().nvrtcGetSupportedArchs()))


def require_arch(arch: str) -> None:
    """Raises ToolMissing when this NVRTC cannot compile for `arch`."""
    if arch.rstrip("af") not in supported_archs():
        raise ToolMissing(
            f"NVRTC {version()} cannot compile for {arch}; it knows {', '.join(supported_archs())}"
        )


INSTALL = "in a clone of fa-tune: pip install '.[cpu]', with a GPU '.[cuda13]' or '.[cuda12]'"


@cache
def _bindings() -> Any:
    """The bindings module, after proving that the library behind it loads."""
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise ToolMissing(
            f"cuda-bindings cannot be imported ({first_line(error)}); "
            "install it with: pip install cuda-bindings"
        ) from None
    # What the releases of the loader raise.
    failures = (RuntimeError, OSError, ImportError)
    try:
        nvrtc.nvrtcVersion()
    except failures as first:
        # The loader knows the interpreter's own package folders, but not those that a .pth
        # file or PYTHONPATH adds; a library that is loaded already it takes as it is.
        if not _preload():
            raise _not_loadable(first) from None
        try:
            nvrtc.nvrtcVersion()
        except failures as second:
            raise _not_loadable(second) from None
    return nvrtc


def _preload() -> bool:
    """Load NVRTC from a wheel on Python's path; False if there is none that loads."""
    for folder in map(Path, sys.path):
        for pattern in ("nvidia/cu*/lib/libnvrtc.so.[0-9]*", "nvidia/cuda_nvrtc/lib/libnvrtc.so.*"):
            for library in sorted(folder.glob(pattern)):
                with contextlib.suppress(OSError):
                    # NVRTC itself opens this one by name alone.
                    for builtins in library.parent.glob("libnvrtc-builtins.so.*"):
                        ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
                    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
                    return True
    return False


def _not_loadable(error: Exception) -> ToolMissing:
    return ToolMissing(f"the NVRTC library cannot be loaded ({first_line(error)}); {INSTALL}")


def _checked(result: Any) -> Any:
    """The values behind the status code: none, the only one, or a tuple."""
    status, *values = result
    if status.value != 0:
        raise ToolMissing(f"NVRTC failed with {status.name}")
    return values[0] if len(values) == 1 else tuple(values)


def _bytes(size_of: Any, read: Any, program: Any) -> bytes:
    """What NVRTC has of a program; empty where that is nothing."""
    if buffer := bytearray(_checked(size_of(program))):
        _checked(read(program, buffer))
    return bytes(buffer)
