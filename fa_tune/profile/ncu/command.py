"""The arguments ncu is started with, and where ncu is.

Every option whose default has changed or may change is passed, and none is left to a config
file found by chance, so that the recorded argument list says how a number was taken.  Options
that a release lacks would end it with an error; `OPTION_SINCE` says since when each exists.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fa_tune.core.errors import InvalidConfig, ToolMissing
from fa_tune.profile.ncu.metrics import (
    EXPLAIN,
    FULL,
    RANK,
    metric_request,
    parse_query_metrics,
    resolve_metrics,
)


class NcuVersion(NamedTuple):
    """`2025.3.1` as numbers that compare."""

    year: int
    release: int
    patch: int = 0

    def __str__(self) -> str:
        return f"{self.year}.{self.release}.{self.patch}"


MINIMUM_VERSION = NcuVersion(2022, 1)

# The first release known to have an option or value.  Where the release notes at hand do not
# name it, this is the oldest release whose help lists it, so that no release is given an
# option it lacks; `supported` of `ncu_arguments` overrules the table.
OPTION_SINCE: Mapping[str, NcuVersion] = {
    "--rename-kernels": NcuVersion(2025, 1),
    "--pipeline-boost-state": NcuVersion(2025, 3),
    "--clock-control boost": NcuVersion(2025, 4),
    "--clock-control force-boost": NcuVersion(2025, 4),
}

_REPLAY_MODES = ("kernel", "application", "range", "app-range")
_CLOCK_CONTROLS = ("none", "base", "boost", "force-boost")
_CHOICES = {
    "replay_mode": _REPLAY_MODES,
    "clock_control": _CLOCK_CONTROLS,
    "cache_control": ("all", "none"),
    "target_processes": ("all", "application-only"),
}


@dataclass(frozen=True)
class NcuOptions:
    """What one ncu run is to do.

    `section_set` is `--set`'s name, beside the metrics.  `pipeline_boost_state` None follows
    the clocks: `dynamic` (what production sees) with free clocks, `stable` with locked ones.
    `nvtx_range` restricts profiling to a range (`domain@name/`, with the slash of push/pop);
    `profile_from_start` False means that the program brackets its launches by
    cuProfilerStart and cuProfilerStop.  `export` keeps the report; `page` None then prints
    nothing, and `import_arguments` prints from the report.  `kernel_name` is ncu's own
    filter, an exact mangled name or `regex:…`.  Raises InvalidConfig for a value that no
    release knows.
    """

    metrics: tuple[str, ...] = RANK
    section_set: str | None = None
    replay_mode: str = "kernel"
    clock_control: str = "none"
    cache_control: str = "all"
    pipeline_boost_state: str | None = None
    nvtx_range: str | None = None
    profile_from_start: bool = False
    export: Path | None = None
    log_file: Path | None = None
    target_processes: str = "all"
    page: str | None = "raw"
    kernel_name: str | None = None
    launch_skip: int = 0
    launch_count: int | None = None

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise InvalidConfig(
                    f"{name} {getattr(self, name)!r}; allowed: {', '.join(allowed)}"
                )
        if self.pipeline_boost_state not in (None, "stable", "dynamic"):
            raise InvalidConfig(
                f"pipeline_boost_state {self.pipeline_boost_state!r}; allowed: stable, dynamic"
            )
        if not self.metrics and self.section_set is None:
            raise InvalidConfig("nothing to measure: neither metrics nor a section set")
        if "range" in self.replay_mode and not self.profile_from_start:
            raise InvalidConfig(f"{self.replay_mode} replay needs profile_from_start")

    @property
    def boost_state(self) -> str:
        """The tensor-core boost state, resolved."""
        if self.pipeline_boost_state is not None:
            return self.pipeline_boost_state
        return "dynamic" if self.clock_control == "none" else "stable"


def ncu_arguments(
    options: NcuOptions, version: NcuVersion, *, supported: Collection[str] | None = None
) -> list[str]:
    """The arguments that stand between `ncu` and the program.

    `supported` is the set of option names in `ncu --help` (see `parse_help`) where the
    caller asked; it overrules `OPTION_SINCE`.  Raises ToolMissing for a release before
    `MINIMUM_VERSION` and InvalidConfig for a clock control that the release does not have.
    """
    _check_version(version)
    clocks = f"--clock-control {options.clock_control}"
    if version < OPTION_SINCE.get(clocks, version):
        raise InvalidConfig(
            f"ncu {version} has no {clocks}; {OPTION_SINCE[clocks]} or later has, "
            "or use none or base"
        )
    arguments = ["--config-file", "off", "--target-processes", options.target_processes]
    arguments += ["--check-exit-code", "yes"]
    arguments += ["--replay-mode", options.replay_mode]
    arguments += ["--clock-control", options.clock_control]
    if _has("--pipeline-boost-state", version, supported):
        arguments += ["--pipeline-boost-state", options.boost_state]
    arguments += ["--cache-control", options.cache_control]
    arguments += ["--profile-from-start", "on" if options.profile_from_start else "off"]
    if options.nvtx_range is not None:
        arguments += ["--nvtx", "--nvtx-include", options.nvtx_range]
    arguments += ["--kernel-name-base", "mangled"]
    if options.kernel_name is not None:
        arguments += ["--kernel-name", options.kernel_name]
    if options.launch_skip:
        arguments += ["--launch-skip", str(options.launch_skip)]
    if options.launch_count is not None:
        arguments += ["--launch-count", str(options.launch_count)]
    if options.section_set is not None:
        arguments += ["--set", options.section_set]
    if options.metrics:
        arguments += ["--metrics", ",".join(options.metrics)]
    if options.export is not None:
        arguments += ["--export", str(options.export), "--force-overwrite"]
    return arguments + _print_arguments(options.page, options.log_file, version, supported)


def import_arguments(
    report: Path,
    version: NcuVersion,
    *,
    page: str = "raw",
    log_file: Path | None = None,
    supported: Collection[str] | None = None,
) -> list[str]:
    """The arguments that print a report, on a machine that need not have a GPU."""
    _check_version(version)
    arguments = ["--config-file", "off", "--import", str(report)]
    return arguments + _print_arguments(page, log_file, version, supported)


def query_metrics_arguments(chip: str | None = None) -> list[str]:
    """The arguments that list the metrics of a chip (`gh100`), or of the GPU at hand; the
    output is for `parse_query_metrics`."""
    chips = ["--chips", chip] if chip else []
    return ["--config-file", "off", "--query-metrics", "--query-metrics-mode", "all", *chips]


def _print_arguments(
    page: str | None,
    log_file: Path | None,
    version: NcuVersion,
    supported: Collection[str] | None,
) -> list[str]:
    arguments = ["--csv", "--print-units", "base", "--print-fp"]
    if page is not None:
        arguments += ["--page", page]
    arguments += ["--print-kernel-base", "mangled"]
    if _has("--rename-kernels", version, supported):
        arguments += ["--rename-kernels", "off"]
    if log_file is not None:
        arguments += ["--log-file", str(log_file)]
    return arguments


def _has(option: str, version: NcuVersion, supported: Collection[str] | None) -> bool:
    return version >= OPTION_SINCE[option] if supported is None else option in supported


def _check_version(version: NcuVersion) -> None:
    if version < MINIMUM_VERSION:
        raise ToolMissing(f"ncu {version} is too old; {MINIMUM_VERSION} or later is needed")


def parse_help(text: str) -> frozenset[str]:
    """The long options that `ncu --help` lists."""
    return frozenset(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", text))


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


__all__ = [
    "EXPLAIN",
    "FULL",
    "MINIMUM_VERSION",
    "OPTION_SINCE",
    "RANK",
    "NcuOptions",
    "NcuVersion",
    "find_ncu",
    "import_arguments",
    "metric_request",
    "ncu_arguments",
    "parse_help",
    "parse_ncu_version",
    "parse_query_metrics",
    "query_metrics_arguments",
    "resolve_metrics",
]
