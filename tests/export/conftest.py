"""One export, built once, with the stub of the driver that is part of it."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from fa_tune.build import compile, nvrtc
from fa_tune.build.cache import ArtifactStore
from fa_tune.build.compile import BuildRequest, BuildResult, build
from fa_tune.build.native.library import host_compiler
from fa_tune.core.errors import ToolMissing
from fa_tune.core.options import MachineOptions, Silent
from fa_tune.core.workload import DType
from fa_tune.export import project
from fa_tune.export.project import Export, export
from fa_tune.export.selection import ExportOptions
from tests.conftest import kept_folder
from tests.export.small_registry import saved

STRICT = "-Wall -Wextra -Wshadow -Werror -O0"


@dataclass(frozen=True)
class Built:
    """An export: its folder, where it was built, and where it is installed."""

    made: Export
    folder: Path
    build: Path
    prefix: Path

    @property
    def library(self) -> Path:
        return self.build / "libfa_tune.so"

    @property
    def with_stub(self) -> dict[str, str]:
        """The environment of programs that find the stub in place of the driver."""
        return {**os.environ, "LD_LIBRARY_PATH": str(self.build / "stub")}


def tool(name: str) -> str:
    """A program of this environment, else of the machine."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def run(*command: str, env: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=env)
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
    return done.stdout


def configure_and_build(source: Path, build: Path, *options: str) -> None:
    ninja = ("-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}")
    run(tool("cmake"), "-S", str(source), "-B", str(build), *ninja, *options)
    run(tool("cmake"), "--build", str(build))


@pytest.fixture(scope="session")
def compiled_cache(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A folder of compiled kernels, kept between runs where pytest keeps anything."""
    try:
        nvrtc.version()
        host_compiler()
    except ToolMissing as error:
        pytest.skip(str(error))
    return kept_folder(request, tmp_path_factory, "artifacts")


@pytest.fixture(scope="session")
def options(tmp_path_factory: pytest.TempPathFactory) -> ExportOptions:
    registry = saved(tmp_path_factory.mktemp("registry") / "registry.json")
    return ExportOptions(registry, dtypes=(DType.FP16,), ptx=True, few_queries=True)


def quickly_exported(folder: Path, options: ExportOptions, machine: MachineOptions) -> Export:
    """An export whose kernels nothing runs: one of each config is compiled, quickly by an NVRTC
    that can, and stands for those with other traits."""
    quick = (*compile.OPTIONS, "--Ofast-compile=max")
    with pytest.MonkeyPatch.context() as patch:
        with suppress(nvrtc.CompileError):
            nvrtc.compile_source("", "none.cu", {}, ("-arch=sm_80", *quick))
            patch.setattr(compile, "OPTIONS", quick)
        patch.setattr(project, "build", _one_of_each)
        return export(folder, options, machine, Silent())


def _one_of_each(
    requests: Sequence[BuildRequest], store: ArtifactStore, **more: Any
) -> list[BuildResult]:
    """See `build`."""
    some = {(r.variant, r.arch): r for r in requests}
    results = dict(zip(some, build(list(some.values()), store, **more), strict=True))
    return [_standing_for(r, results[r.variant, r.arch]) for r in requests]


def _standing_for(request: BuildRequest, found: BuildResult) -> BuildResult:
    assert found.artifact is not None, found.reason
    return replace(found, request=request, artifact=replace(found.artifact, traits=request.traits))


@pytest.fixture(scope="session")
def exported(
    options: ExportOptions, compiled_cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> Export:
    """The small registry's kernels and defaults."""
    folder = tmp_path_factory.mktemp("export") / "attention"
    return quickly_exported(folder, options, MachineOptions(cache_dir=compiled_cache))


@pytest.fixture(scope="session")
def built(exported: Export, tmp_path_factory: pytest.TempPathFactory) -> Built:
    root = tmp_path_factory.mktemp("built")
    options = (f"-DCMAKE_C_FLAGS={STRICT}", f"-DCMAKE_CXX_FLAGS={STRICT}")
    configure_and_build(exported.folder, root / "build", "-DCMAKE_BUILD_TYPE=Debug", *options)
    run(tool("cmake"), "--install", str(root / "build"), "--prefix", str(root / "prefix"))
    return Built(exported, exported.folder, root / "build", root / "prefix")
