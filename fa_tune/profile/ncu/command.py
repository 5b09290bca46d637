"""The arguments ncu is started with, and where ncu is.

Every option whose default has changed or may change is passed, and none is left to a config
file found by chance, so that the recorded argument list says how a number was taken.  Options
that a release lacks would end it with an error; `OPTION_SINCE` says since when each exists.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fa_tune.core.errors import InvalidConfig, ToolMissing
from fa_tune.profile.ncu.metrics import RANK


class NcuVersion(NamedTuple):
    """`2025.3.1` as numbers that compare."""

    year: int
    release: int
    patch: int = 0

    def __str__(self) -> str:
        return f"{self.year}.{self.release}.{self.patch}"


MINIMUM_VERSION = NcuVersion(2022, 1)
CACHE_CONTROL = "all"  # caches are flushed before every pass

# The first release known to have an option or value.  Where the release notes at hand do not
# name it, this is the oldest release whose help lists it, so that no release is given an
# option it lacks.
OPTION_SINCE: Mapping[str, NcuVersion] = {
    "--rename-kernels": NcuVersion(2025, 1),
    "--pipeline-boost-state": NcuVersion(2025, 3),
}


@dataclass(frozen=True)
class NcuOptions:
    """Settings of one ncu run, whose program launches between cuProfilerStart and cuProfilerStop.

    `section_set` is `--set`'s name, beside the metrics.  `export` keeps the report and prints
    nothing; `import_arguments` prints from it.  Raises InvalidConfig for a value that no release
    knows.
    """

    metrics: tuple[str, ...] = RANK
    section_set: str | None = None
    clock_control: str = "none"
    export: Path | None = None
    log_file: Path | None = None

    def __post_init__(self) -> None:
        if self.clock_control not in ("none", "base"):
            raise InvalidConfig(f"clock_control {self.clock_control!r}; allowed: none, base")
        if not self.metrics and self.section_set is None:
            raise InvalidConfig("nothing to measure: neither metrics nor a section set")

    @property
    def boost_state(self) -> str:
        """The tensor-core boost state: `dynamic` (what production sees) with free clocks, `stable`
        with locked ones."""
        return "dynamic" if self.clock_control == "none" else "stable"


def ncu_arguments(options: NcuOptions, version: NcuVersion) -> list[str]:
    """The arguments that stand between `ncu` and the program.

    Raises ToolMissing for a release before `MINIMUM_VERSION`.
    """
    _check_version(version)
    arguments = ["--config-file", "off", "--target-processes", "all"]
    arguments += ["--check-exit-code", "yes"]
    arguments += ["--replay-mode", "kernel"]
    arguments += ["--clock-control", options.clock_control]
    if version >= OPTION_SINCE["--pipeline-boost-state"]:
        arguments += ["--pipeline-boost-state", options.boost_state]
    arguments += ["--cache-control", CACHE_CONTROL]
    arguments += ["--profile-from-start", "off"]
    arguments += ["--kernel-name-base", "mangled"]
    if options.section_set is not None:
        arguments += ["--set", options.section_set]
    if options.metrics:
        arguments += ["--metrics", ",".join(options.metrics)]
    if options.export is not None:
        arguments += ["--export", str(options.export), "--force-overwrite"]
    return arguments + _print_arguments(options.log_file, version, page=options.export is None)


def import_arguments(
    report: Path, version: NcuVersion, *, log_file: Path | None = None
) -> list[str]:
    """The arguments that print a report, on a machine that need not have a GPU."""
    _check_version(version)
    arguments = ["--config-file", "off", "--import", str(report)]
    return arguments + _print_arguments(log_file, version)


def query_metrics_arguments() -> list[str]:
    """The arguments that list the metrics of the GPU at hand, for `parse_query_metrics`."""
    return ["--config-file", "off", "--query-metrics", "--query-metrics-mode", "all"]


def _print_arguments(log_file: Path | None, version: NcuVersion, *, page: bool = True) -> list[str]:
    arguments = ["--csv", "--print-units", "base", "--print-fp"]
    if page:
        arguments += ["--page", "raw"]
    arguments += ["--print-kernel-base", "mangled"]
    if version >= OPTION_SINCE["--rename-kernels"]:
        arguments += ["--rename-kernels", "off"]
    if log_file is not None:
        arguments += ["--log-file", str(log_file)]
    return arguments


def _check_version(version: NcuVersion) -> None:
    if version < MINIMUM_VERSION:
        raise ToolMissing(f"ncu {version} is too old; {MINIMUM_VERSION} or later is needed")


def parse_ncu_version(text: str) -> NcuVersion:
    """The release in what `ncu --version` prints; raises ToolMissing if there is none."""
    match = re.search(r"\bVersion\s+(\d{4})\.(\d+)(?:\.(\d+))?", text, re.IGNORECASE)
    if match is None:
        first = text.strip().splitlines()[0][:60] if text.strip() else "nothing"
        raise ToolMissing(f"this is not Nsight Compute: --version printed {first!r}")
    year, release, patch = match.groups()
    return NcuVersion(int(year), int(release), int(patch or 0))


def find_ncu(
    environment: Mapping[str, str] | None = None,
    *,
    roots: Sequence[Path] = (Path("/usr/local"), Path("/opt/nvidia/nsight-compute")),
) -> Path:
    """The ncu program: on PATH, in $CUDA_HOME or $CUDA_PATH, in a CUDA toolkit under the
    first root, or in an installation of its own under the second, newest first.

    Raises ToolMissing with advice.
    """
    environment = os.environ if environment is None else environment
    on_path = shutil.which("ncu", path=environment.get("PATH", ""))
    if on_path is not None:
        return Path(on_path)
    homes = [Path(h) for name in ("CUDA_HOME", "CUDA_PATH") if (h := environment.get(name))]
    toolkits = homes + [t for root in roots for t in _newest_first(root, "cuda*")]
    installs = [i for t in toolkits for i in _newest_first(t, "nsight-compute-*")]
    installs += [i for root in roots for i in _newest_first(root, "[0-9]*")]
    for candidate in (*(t / "bin" / "ncu" for t in toolkits), *(i / "ncu" for i in installs)):
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate
    raise ToolMissing(
        "ncu not found on PATH, in $CUDA_HOME, or under "
        f"{' or '.join(str(r) for r in roots)}; install Nsight Compute, or use "
        "--profiler events or --profiler replay"
    )


def _newest_first(folder: Path, pattern: str) -> list[Path]:
    def numbers(path: Path) -> list[int]:
        return [int(n) for n in re.findall(r"\d+", path.name)]

    return sorted(folder.glob(pattern), key=numbers, reverse=True)
