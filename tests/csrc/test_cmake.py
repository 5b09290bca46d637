"""The C++ tests of the core, built by CMake with sanitizers."""

import subprocess
from pathlib import Path

import pytest

from fa_tune.build.native.library import host_compiler
from fa_tune.core.errors import ToolMissing
from tests.csrc.conftest import HERE
from tests.export.conftest import run, tool


@pytest.fixture(params=["address,undefined", "thread"])
def sanitizers(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    try:
        compiler = host_compiler()
    except ToolMissing as error:
        pytest.skip(str(error))
    (tmp_path / "empty.cpp").write_text("int main() {}\n")
    command = [compiler, f"-fsanitize={request.param}", "empty.cpp", "-o", "empty"]
    if subprocess.run(command, cwd=tmp_path, capture_output=True).returncode:
        pytest.skip(f"{compiler} has no -fsanitize={request.param}")
    return str(request.param)


@pytest.mark.long
def test_the_cpp_tests_pass_under_sanitizers(sanitizers: str, tmp_path: Path) -> None:
    folder = str(tmp_path / "build")
    options = [f"-DSANITIZE={sanitizers}", f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}"]
    run(tool("cmake"), "-S", str(HERE), "-B", folder, "-G", "Ninja", *options)
    # Races are of the programs with threads.
    threaded = ("launch", "threads") if sanitizers == "thread" else ()
    targets = [word for name in threaded for word in ("--target", f"test_{name}")]
    run(tool("cmake"), "--build", folder, *targets)
    wanted = ["-R", f"^({'|'.join(threaded)})$"] if threaded else []
    shown = ["--output-on-failure", "--no-tests=error"]
    run(tool("ctest"), "--test-dir", folder, *shown, *wanted)
