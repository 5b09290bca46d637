"""The C++ core, and a stub of the CUDA driver that records what is launched."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fa_tune.build.native.library import core_library, host_compiler, shared_library
from fa_tune.core.errors import ToolMissing
from tests.conftest import kept_folder
from tests.project_files import ROOT

HERE = ROOT / "tests" / "csrc"
STUB = ROOT / "csrc" / "stub"
# What a process must find in place of the driver.
RunWithStub = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def native_cache(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of compiled libraries, kept between runs where pytest keeps anything."""
    try:
        host_compiler()
    except ToolMissing as error:
        pytest.skip(str(error))
    return kept_folder(request, tmp_path_factory, "native")


@pytest.fixture(scope="session")
def core(native_cache: Path) -> Path:
    """The library, where `tests.described` has it, too."""
    return core_library()


@pytest.fixture(scope="session")
def stub(native_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the stub."""
    names = ("stub_driver.h", "stub_binary.h", "stub_driver.cpp")
    sources = {name: (STUB / name).read_text(encoding="utf-8") for name in names}
    options = ("-std=c++17", "-O2", "-fvisibility=hidden", "-Wl,-soname,libcuda.so.1")
    built = shared_library("cuda_stub", sources, options, (), native_cache)
    folder = tmp_path_factory.mktemp("driver")
    shutil.copy(built, folder / "libcuda.so.1")
    return folder


@pytest.fixture(scope="session")
def run_with_stub(stub: Path, core: Path) -> RunWithStub:
    """Runs `tests.csrc.<module>` in a process whose driver is the stub; its first argument is the
    library of the core."""

    def run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", f"tests.csrc.{module}", str(core), *arguments]
        return subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "LD_LIBRARY_PATH": str(stub)},
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run
