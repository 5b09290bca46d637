"""C++ sources become a shared library, once: later calls find it by the hash of what went in."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path

from filelock import FileLock

from fa_tune.build.native.sources import core_sources, torch_sources
from fa_tune.core.errors import StorageError, ToolMissing
from fa_tune.core.files import check_own
from fa_tune.core.paths import default_cache_dir, ready_library

COMPILERS = ("c++", "g++", "clang++")  # after what CXX names
_FOLDER = "native-v1"
_TIMEOUT_S = 300.0
# The stable ABI of torch 2.10.
_TORCH_TARGET = "-DTORCH_TARGET_VERSION=0x020a000000000000"
_CORE_OPTIONS = ("-std=c++17", "-O2", "-fvisibility=hidden", "-Wall", "-Wextra")


def core_library(cache_dir: Path | None = None) -> Path:
    """The C++ core as a shared library: the wheel's, else see `shared_library`."""
    return ready_library("fa_tune") or shared_library(
        "fa_tune", core_sources(), _CORE_OPTIONS, ("-ldl",), cache_dir
    )


def torch_library(torch: Path, cache_dir: Path | None = None) -> Path:
    """The operators of `csrc/torch` with the core in them, for a torch of 2.10 or later that is
    installed in the folder `torch`.  What is built runs in every such torch, so a wheel has it."""
    return ready_library("fa_tune_torch") or stable_library(
        "fa_tune_torch", torch_sources(), torch, cache_dir
    )


def stable_library(
    name: str, sources: Mapping[str, str], torch: Path, cache_dir: Path | None = None
) -> Path:
    """`shared_library` of sources that use torch's stable ABI."""
    options = (*_CORE_OPTIONS, _TORCH_TARGET, f"-isystem{torch / 'include'}")
    libraries = ("-ldl", f"-L{torch / 'lib'}", "-ltorch_cpu")
    return shared_library(name, sources, options, libraries, cache_dir)


def shared_library(
    name: str,
    sources: Mapping[str, str],
    options: Sequence[str],
    libraries: Sequence[str] = (),
    cache_dir: Path | None = None,
) -> Path:
    """`lib<name>.so` of every `.cpp` among `sources`, name -> text, which may include all of them.

    `options` are the compiler's, `libraries` the linker's.  Kept under `cache_dir` (None: the
    user's cache folder) by the hash of sources, options and compiler.  Raises ToolMissing without a
    compiler and for sources that it refuses, StorageError for a folder that cannot be written, or
    that other users may write.
    """
    compiler = host_compiler()
    digested = (compiler, _version(compiler), name, *options, "", *libraries, "")
    parts = [*digested, *(part for file in sorted(sources) for part in (file, sources[file]))]
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    cache_dir = cache_dir or default_cache_dir()
    target = cache_dir / _FOLDER / digest[:32] / f"lib{name}.so"
    check_own(cache_dir, target.parents[1], target.parent, target)
    if target.is_file():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.parent / "lock"):  # one process compiles for all
            if target.is_file():
                return target
            with tempfile.TemporaryDirectory(dir=target.parent) as folder:
                made = _compiled(compiler, Path(folder), sources, options, libraries)
                made.replace(target)
    except OSError as error:
        raise StorageError(f"cannot write {error.filename or target}: {error.strerror}") from error
    return target


def host_compiler() -> str:
    """The path of the host's C++ compiler: the one that CXX names, else the first there is.
    Raises ToolMissing."""
    given = os.environ.get("CXX")
    for name in (given,) if given else COMPILERS:
        if found := shutil.which(name):
            return found
    if given:
        raise ToolMissing(f"the C++ compiler that CXX names is not there: {given}")
    raise ToolMissing(
        f"no C++ compiler found ({', '.join(COMPILERS)}); install one, or name it in CXX"
    )


@cache
def _version(compiler: str) -> str:
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
    return done.stdout


def _compiled(
    compiler: str,
    folder: Path,
    sources: Mapping[str, str],
    options: Sequence[str],
    libraries: Sequence[str],
) -> Path:
    for name, text in sources.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    units = sorted(name for name in sources if name.endswith(".cpp"))
    run = partial(_run, folder, compiler, *options, "-fPIC")
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(lambda unit: run("-I.", "-c", unit, "-o", f"{unit}.o"), units))
    # Not called like a source.
    run("-shared", *(f"{unit}.o" for unit in units), "-o", "library.so", *libraries)
    return folder / "library.so"


def _run(folder: Path, compiler: str, *arguments: str) -> None:
    try:
        done = subprocess.run(
            [compiler, *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ToolMissing(f"{compiler} took longer than {_TIMEOUT_S:g} s to compile") from None
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line]
        why = (errors or done.stderr.splitlines() or ["no reason given"])[0]
        raise ToolMissing(f"{compiler} does not compile the C++ sources: {why}")
