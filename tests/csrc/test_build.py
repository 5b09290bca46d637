"""The core is compiled once, by what is there, and says in one line what is not."""

import ctypes
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from fa_tune.build.native import abi, library
from fa_tune.core.errors import StorageError, ToolMissing
from fa_tune.export.types_header import c_name
from tests.project_files import ROOT

SOURCES = {"one.cpp": '#include "sub/two.h"\nextern "C" int one() { return TWO - 1; }\n'}
HEADER = {"sub/two.h": "#define TWO 2\n"}


@pytest.fixture
def counting_compiler(native_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """CXX: the host's compiler, which notes each compilation in the file that is given."""
    log, script = tmp_path / "log", tmp_path / "c++"
    noted = f'[ "$1" = --version ] || echo "$@" >> {log}'
    script.write_text(f'#!/bin/sh\n{noted}\nexec {library.host_compiler()} "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(script))
    log.touch()
    return log


def test_a_library_is_compiled_once(counting_compiler: Path, tmp_path: Path) -> None:
    def made(sources: dict[str, str], *options: str) -> Path:
        return library.shared_library("one", sources, options, (), tmp_path)

    first = made(SOURCES | HEADER)
    compiled = counting_compiler.read_text()
    assert compiled
    assert made(SOURCES | HEADER) == first
    assert counting_compiler.read_text() == compiled
    others = {made(SOURCES | {"sub/two.h": "#define TWO 3\n"}), made(SOURCES | HEADER, "-O1")}
    assert len(others | {first}) == 3
    assert not list(tmp_path.rglob("*.cpp")), "only libraries are kept"


def test_what_does_not_compile_is_one_line(native_cache: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ToolMissing, match=r"does not compile the C\+\+ sources: .*two\.h"
    ) as caught:
        library.shared_library("one", SOURCES, (), (), tmp_path)
    assert "\n" not in str(caught.value)


def test_without_a_compiler_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolMissing, match=r"no C\+\+ compiler found .*; install one"):
        library.core_library(tmp_path)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ToolMissing, match="CXX names is not there: no-such-compiler"):
        library.core_library(tmp_path)


def test_an_unwritable_cache_is_one_line(native_cache: Path, tmp_path: Path) -> None:
    (tmp_path / "native-v1").write_text("a file in the folder's place")
    with pytest.raises(StorageError, match="cannot write"):
        library.shared_library("one", SOURCES | HEADER, (), (), tmp_path)


def test_a_library_that_others_may_write_is_not_loaded(native_cache: Path, tmp_path: Path) -> None:
    made = library.shared_library("one", SOURCES | HEADER, (), (), tmp_path)
    for path in (made, made.parent, made.parents[1], tmp_path):
        path.chmod(path.stat().st_mode | 0o002)
        with pytest.raises(StorageError, match="other users may write it"):
            library.shared_library("one", SOURCES | HEADER, (), (), tmp_path)
        path.chmod(path.stat().st_mode & ~0o002)


def test_another_version_of_the_abi_is_refused(
    core: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    version = abi.ABI_VERSION
    monkeypatch.setattr(abi, "ABI_VERSION", version + 1)
    with pytest.raises(ToolMissing, match=f"version {version} of the ABI; {version + 1} is needed"):
        abi.load(core)
    other = library.shared_library("one", SOURCES | HEADER, (), (), tmp_path)
    with pytest.raises(ToolMissing, match="has no fa_tune_"):
        abi.load(other)
    with pytest.raises(ToolMissing, match="cannot be loaded"):
        abi.load(tmp_path / "none.so")


def test_the_core_needs_nothing_but_the_standard_libraries(core: Path) -> None:
    done = subprocess.run(["ldd", core], capture_output=True, text=True, check=True)
    names = {Path(line.split()[0]).name.split(".")[0] for line in done.stdout.splitlines()}
    allowed = {"linux-vdso", "libstdc++", "libm", "libgcc_s", "libc", "libdl", "libpthread"}
    assert not {name for name in names if not name.startswith("ld-")} - allowed


def test_structs_are_those_of_the_header(native_cache: Path, tmp_path: Path) -> None:
    """Sizes and offsets of every field, as the compiler has them."""
    lines, expected = [], []
    for kind in abi.STRUCTS:
        name = c_name(kind)
        lines.append(f'printf("%zu\\n", sizeof(struct {name}));')
        expected.append(ctypes.sizeof(kind))
        for field, *_ in kind._fields_:
            lines.append(f'printf("%zu\\n", offsetof(struct {name}, {field}));')
            expected.append(getattr(kind, field).offset)

    for enum, prefix in ((abi.Mask, "FA_TUNE_MASK_"), (abi.Status, "FA_TUNE_")):
        for member in enum:
            lines.append(f'printf("%d\\n", (int){prefix}{member.name});')
            expected.append(int(member))

    lines.append('printf("%d\\n", FA_TUNE_ABI_VERSION);')
    expected.append(abi.ABI_VERSION)
    text = '#include <stdio.h>\n#include <stddef.h>\n#include "fa_tune.h"\n'
    (tmp_path / "main.cpp").write_text(f"{text}int main() {{\n{chr(10).join(lines)}\n}}\n")
    include = f"-I{ROOT / 'csrc' / 'core'}"
    command = [library.host_compiler(), "-std=c++17", include, "main.cpp", "-o", "main"]
    subprocess.run(command, cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=True)
    assert [int(line) for line in done.stdout.split()] == expected


def test_the_header_is_c(native_cache: Path, tmp_path: Path) -> None:
    (tmp_path / "main.c").write_text('#include "fa_tune.h"\nint main(void) { return 0; }\n')
    options = ["-x", "c", "-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"]
    include = f"-I{ROOT / 'csrc' / 'core'}"
    subprocess.run([library.host_compiler(), *options, include, tmp_path / "main.c"], check=True)


def test_without_a_driver_it_loads_and_says_so(core: Path) -> None:
    """With a folder in which nothing is, no machine has a driver at hand but in its own places."""
    program = (
        "import ctypes, sys\n"
        "try:\n    ctypes.CDLL('libcuda.so.1')\n"
        "except OSError:\n    pass\n"
        "else:\n    sys.exit('has a driver')\n"
        "from pathlib import Path\n"
        "from fa_tune.build.native.core import Core\n"
        "core = Core(Path(sys.argv[1]))\n"
        "try:\n    core.check(core.library.fa_tune_init())\n"
        "except Exception as error:\n    print(type(error).__name__, error)\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
    done = subprocess.run(
        [sys.executable, "-c", program, core],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    if "has a driver" in done.stderr:
        pytest.skip("this machine has a CUDA driver")
    assert done.stdout.strip() == (
        "ToolMissing no CUDA driver found: libcuda.so.1 cannot be loaded; install the driver"
    )
