"""Reports (`.ncu-rep`) through `ncu_report`, the Python module that ships with ncu.

It needs no text, so no rounding, separators or locales stand between the counters and us.  It
is not on any package index: it lies in the installation's `extras/python` and belongs to that
release, so it is looked for there and nothing depends on it.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fa_tune.core.errors import ProfileFormatError, ToolMissing
from fa_tune.core.units import to_base
from fa_tune.profile.ncu.command import find_ncu
from fa_tune.profile.ncu.launches import NO_PROCESS, Launch, MetricValue, Missing, Profile
from fa_tune.profile.ncu.metrics import checked


def find_module(folders: Sequence[Path] | None = None) -> Any | None:
    """The `ncu_report` module if it can be imported, else None.

    `folders` are searched after the interpreter's own path; by default the `extras/python` of
    the ncu installations that can be found.
    """
    try:
        return importlib.import_module("ncu_report")
    except ImportError:
        pass
    for folder in extras_folders() if folders is None else folders:
        if not (folder / "ncu_report.py").is_file():
            continue
        sys.path.insert(0, str(folder))
        try:
            return importlib.import_module("ncu_report")
        except (ImportError, OSError):  # built for another interpreter or platform
            continue
        finally:
            sys.path.remove(str(folder))
    return None


def extras_folders(root: Path = Path("/opt/nvidia/nsight-compute")) -> list[Path]:
    """Where an installation may keep the module, the one of the ncu in use first."""
    installs: list[Path] = []
    with contextlib.suppress(ToolMissing):
        installs += Path(os.path.realpath(find_ncu())).parents[:3]
    installs += sorted(root.glob("[0-9]*"), reverse=True)
    for home in (os.environ.get("CUDA_HOME"), "/usr/local/cuda"):
        if home:
            installs += sorted(Path(home).glob("nsight-compute-*"), reverse=True)
    return [folder for i in installs if (folder := i / "extras" / "python").is_dir()]


def read_report(path: str | Path, *, module: Any | None = None) -> Profile:
    """The launches of a report, in base units, as the CSV readers give them.

    Names are demangled.  A report does not say which process a
    launch belongs to: process_id is NO_PROCESS, launches are numbered in the report's order.
    Raises ToolMissing without the module and ProfileFormatError for a file it cannot load.
    """
    module = find_module() if module is None else module
    if module is None:
        raise ToolMissing(
            f"reading {path} needs the ncu_report module of an Nsight Compute installation; "
            "or print it with `ncu --import FILE --page raw --csv --print-units base`"
        )
    try:
        report = module.load_report(str(path))
    except Exception as error:  # the module raises plain RuntimeError and worse
        raise ProfileFormatError(f"{path}: ncu_report cannot load it: {error}") from error
    if report is None:
        raise ProfileFormatError(f"{path}: ncu_report cannot load it")
    launches = tuple(_launch(a, number, module, path) for number, a in enumerate(_actions(report)))
    if not launches:
        raise ProfileFormatError(f"{path}: a report without launches")
    return Profile("report", launches)


def _actions(report: Any) -> Iterator[Any]:
    for r in range(report.num_ranges()):
        part = report.range_by_idx(r)
        for a in range(part.num_actions()):
            yield part.action_by_idx(a)


def _launch(action: Any, number: int, module: Any, path: str | Path) -> Launch:
    metrics = dict(_metrics(action, path))
    major, minor = (
        _integer(metrics, f"device__attribute_compute_capability_{part}")
        for part in ("major", "minor")
    )
    device = _integer(metrics, "launch__device_id")
    return Launch(
        NO_PROCESS,
        number,
        _name(action, module),
        _dimensions(metrics, "launch__block_dim"),
        _dimensions(metrics, "launch__grid_dim"),
        "" if device is None else str(device),
        "" if major is None or minor is None else f"{major}.{minor}",
        metrics,
    )


def _name(action: Any, module: Any) -> str:
    for owner in (getattr(module, "IAction", None), module, action):
        if (base := getattr(owner, "NameBase_DEMANGLED", None)) is not None:
            return str(action.name(base))
    return str(action.name())


def _metrics(action: Any, path: str | Path) -> Iterable[tuple[str, MetricValue]]:
    for name in action.metric_names():
        if name.startswith("launch__occupancy_per_"):
            continue  # a table; its aggregate means nothing
        metric = action[name] if hasattr(action, "__getitem__") else action.metric_by_name(name)
        try:
            yield name, _value(name, metric)
        except ProfileFormatError as error:
            raise type(error)(f"{path}, {name}: {error}") from error


def _value(name: str, metric: Any) -> MetricValue:
    if metric is None or (hasattr(metric, "has_value") and not metric.has_value()):
        return Missing("no data")
    number = metric.value() if hasattr(metric, "value") else metric.as_double()
    if number is None or number == "":
        return Missing("empty")
    if isinstance(number, str):
        return number
    if math.isnan(number):
        return Missing("nan")
    if math.isinf(number):
        return Missing("inf")
    unit = metric.unit() or ""
    return checked(name, to_base(number, unit), unit, number)


def _integer(metrics: dict[str, MetricValue], name: str) -> int | None:
    value = metrics.get(name)
    return int(value.value) if value is not None and hasattr(value, "value") else None


def _dimensions(metrics: dict[str, MetricValue], stem: str) -> tuple[int, int, int] | None:
    x, y, z = (_integer(metrics, f"{stem}_{axis}") for axis in "xyz")
    return None if x is None or y is None or z is None else (x, y, z)
