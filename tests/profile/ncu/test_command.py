"""ncu's arguments by release, its version, and where it is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from fa_tune.core.errors import InvalidConfig, ToolMissing
from fa_tune.profile.ncu.command import (
    MINIMUM_VERSION,
    OPTION_SINCE,
    NcuOptions,
    NcuVersion,
    find_ncu,
    import_arguments,
    ncu_arguments,
    parse_ncu_version,
)
from fa_tune.profile.ncu.metrics import RANK

NEW = NcuVersion(2026, 1)
VERSION = """NVIDIA (R) Nsight Compute Command Line Profiler
Copyright (c) 2018-2025 NVIDIA Corporation
Version 2025.3.1.0 (build 36398880) (public-release)
"""


def value_of(arguments: list[str], option: str) -> str:
    assert arguments.count(option) == 1, option
    return arguments[arguments.index(option) + 1]


def test_everything_with_a_changing_default_is_stated() -> None:
    arguments = ncu_arguments(NcuOptions(log_file=Path("/tmp/x.log")), NEW)
    expected = {
        "--config-file": "off",
        "--target-processes": "all",
        "--check-exit-code": "yes",
        "--replay-mode": "kernel",
        "--clock-control": "none",
        "--pipeline-boost-state": "dynamic",
        "--cache-control": "all",
        "--profile-from-start": "off",
        "--kernel-name-base": "mangled",
        "--print-kernel-base": "mangled",
        "--rename-kernels": "off",
        "--print-units": "base",
        "--page": "raw",
        "--log-file": "/tmp/x.log",
        "--metrics": ",".join(RANK),
    }
    for option, value in expected.items():
        assert value_of(arguments, option) == value
    assert "--csv" in arguments
    assert "--print-fp" in arguments
    # Only the options above and the two flags: nothing is asked for by accident.
    assert len(arguments) == 2 * len(expected) + 2


@pytest.mark.parametrize("option", ["--pipeline-boost-state", "--rename-kernels"])
def test_options_go_only_to_releases_that_have_them(option: str) -> None:
    since = OPTION_SINCE[option]
    before = NcuVersion(since.year, since.release - 1, 9)
    assert option in ncu_arguments(NcuOptions(), since)
    assert option not in ncu_arguments(NcuOptions(), before)


def test_clocks_reports_and_old_releases() -> None:
    for options, state in (
        (NcuOptions(), "dynamic"),
        (NcuOptions(clock_control="base"), "stable"),
    ):
        assert value_of(ncu_arguments(options, NEW), "--pipeline-boost-state") == state
    options = NcuOptions(section_set="full", export=Path("w.ncu-rep"))
    arguments = ncu_arguments(options, NEW)
    assert value_of(arguments, "--export") == "w.ncu-rep"
    assert value_of(arguments, "--set") == "full"
    assert "--force-overwrite" in arguments
    assert "--page" not in arguments
    printed = import_arguments(Path("w.ncu-rep"), NEW, log_file=Path("w.csv"))
    assert value_of(printed, "--import") == "w.ncu-rep"
    assert value_of(printed, "--page") == "raw"
    assert value_of(printed, "--print-units") == "base"
    assert value_of(printed, "--config-file") == "off"
    assert value_of(printed, "--log-file") == "w.csv"
    assert not {"--metrics", "--clock-control", "--replay-mode"} & set(printed)
    assert "--rename-kernels" not in import_arguments(Path("w"), NcuVersion(2022, 4))
    old = NcuVersion(2021, 3, 1)
    assert old < MINIMUM_VERSION
    with pytest.raises(ToolMissing, match=r"ncu 2021\.3\.1 is too old; 2022\.1\.0 or later"):
        ncu_arguments(NcuOptions(), old)
    with pytest.raises(ToolMissing, match="too old"):
        import_arguments(Path("x"), old)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("clock_control", "reset"),
        ("metrics", ()),
    ],
)
def test_values_no_release_knows(name: str, value: object) -> None:
    with pytest.raises(InvalidConfig):
        NcuOptions(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (VERSION, NcuVersion(2025, 3, 1)),
        ("Version 2022.4.1.0 (build 32258155) (public-release)", NcuVersion(2022, 4, 1)),
        ("version 2026.1", NcuVersion(2026, 1)),
    ],
)
def test_versions(text: str, version: NcuVersion) -> None:
    assert parse_ncu_version(text) == version
    assert str(NcuVersion(2025, 3, 1)) == "2025.3.1"


@pytest.mark.parametrize("text", ["", "ncurses 6.4\n", "Copyright (c) 2018-2025\n"])
def test_a_program_of_the_same_name(text: str) -> None:
    with pytest.raises(ToolMissing, match="not Nsight Compute"):
        parse_ncu_version(text)


def program(path: Path, mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(mode)
    return path


def test_where_ncu_is_found(tmp_path: Path) -> None:
    local, own = tmp_path / "local", tmp_path / "nsight-compute"
    roots = (local, own)
    with pytest.raises(ToolMissing, match="install Nsight Compute, or use --profiler events"):
        find_ncu({}, roots=roots)
    installed = program(own / "2025.3.1" / "ncu")
    program(own / "2024.10.0" / "ncu")
    assert find_ncu({}, roots=roots) == installed
    toolkit = program(local / "cuda-13.0" / "bin" / "ncu")
    program(local / "cuda-9.2" / "bin" / "ncu")
    assert find_ncu({}, roots=roots) == toolkit
    home = program(tmp_path / "home" / "nsight-compute-2025.1.0" / "ncu")
    home_bin = tmp_path / "home" / "bin" / "ncu"
    environment = {"CUDA_HOME": str(tmp_path / "home")}
    assert find_ncu(environment, roots=()) == home
    program(home_bin)
    assert find_ncu(environment, roots=roots) == home_bin
    on_path = program(tmp_path / "path" / "ncu")
    assert find_ncu({**environment, "PATH": str(on_path.parent)}, roots=roots) == on_path


def test_a_file_that_cannot_be_run_is_not_ncu(tmp_path: Path) -> None:
    program(tmp_path / "2025.3.1" / "ncu", mode=0o644)
    with pytest.raises(ToolMissing):
        find_ncu({}, roots=(tmp_path,))
