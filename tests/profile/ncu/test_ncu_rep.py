"""Reports through ncu's own module (a stand-in here), and the same launch by all three ways."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fa_tune.core.errors import ProfileFormatError, ToolMissing, UnknownUnit
from fa_tune.core.model import Quantity
from fa_tune.profile.ncu import ncu_rep
from fa_tune.profile.ncu.launches import NO_PROCESS, Launch, Missing
from fa_tune.profile.ncu.parse import parse_ncu_csv, read_profile
from tests.profile.ncu.ncu_text import details, identity, raw

Value = float | int | str | None
NAMES = {0: "void k<C{5, 128}>(float *)", 1: "_Z1kI1CEvPf", 2: "k"}

# identifier, details page's section and name, unit, value, as the CSV pages print it
LAUNCH: list[tuple[str, str, str, str, Value, str]] = [
    ("gpu__time_duration.sum", "GPU Speed Of Light Throughput", "Duration", "ns", 492384,
     "492,384"),
    ("sm__cycles_elapsed.avg.per_second", "GPU Speed Of Light Throughput", "SM Frequency", "hz",
     1764804248.3125, "1,764,804,248.3125"),
    ("launch__registers_per_thread", "Launch Statistics", "Registers Per Thread",
     "register/thread", 128, "128"),
    ("lts__t_sector_hit_rate.pct", "Memory Workload Analysis", "L2 Hit Rate", "%", 100.59375,
     "100.59375"),
    ("launch__shared_mem_per_block_dynamic", "Launch Statistics",
     "Dynamic Shared Memory Per Block", "byte/block", 32768, "32,768"),
    ("launch__cluster_scheduling_policy", "Launch Statistics", "Cluster Scheduling Policy", "",
     "PolicySpread", "PolicySpread"),
    ("derived__local_spilling_requests_pct", "Memory Workload Analysis",
     "Local Memory Spilling Request Overhead", "%", float("nan"), "nan"),
    ("smsp__inst_executed.sum", "Instruction Statistics", "Executed Instructions", "inst",
     18743296, "18,743,296"),
]  # fmt: skip
FACTS: dict[str, tuple[str, Value]] = {
    "launch__block_dim_x": ("block", 128),
    "launch__block_dim_y": ("block", 1),
    "launch__block_dim_z": ("block", 1),
    "launch__grid_dim_x": ("", 16),
    "launch__grid_dim_y": ("", 16),
    "launch__grid_dim_z": ("", 16),
    "launch__device_id": ("", 0),
    "device__attribute_compute_capability_major": ("", 9),
    "device__attribute_compute_capability_minor": ("", 0),
    "device__attribute_display_name": ("", "NVIDIA H200"),
    "launch__occupancy_per_block_size": ("", 398),
}


class FakeAction:
    """A launch as ncu's module has it, with metrics by name."""

    def __init__(self, metrics: dict[str, tuple[str, Value]]) -> None:
        self.metrics = metrics

    def name(self, base: int = 2) -> str:
        return NAMES[base]

    def metric_names(self) -> tuple[str, ...]:
        return tuple(self.metrics)

    def __getitem__(self, name: str) -> SimpleNamespace:
        unit, value = self.metrics[name]
        return SimpleNamespace(
            unit=lambda: unit, value=lambda: value, has_value=lambda: value is not None
        )


def fake_report(*ranges: list[FakeAction]) -> SimpleNamespace:
    made = [
        SimpleNamespace(num_actions=lambda r=r: len(r), action_by_idx=r.__getitem__) for r in ranges
    ]
    return SimpleNamespace(num_ranges=lambda: len(made), range_by_idx=made.__getitem__)


def fake_module(report: Any) -> Any:
    def load_report(path: str) -> Any:
        if isinstance(report, Exception):
            raise report
        return report

    bases = SimpleNamespace(NameBase_DEMANGLED=0, NameBase_MANGLED=1, NameBase_FUNCTION=2)
    return SimpleNamespace(IAction=bases, load_report=load_report)


def action(**changed: tuple[str, Value]) -> FakeAction:
    metrics = {name: (unit, value) for name, _, _, unit, value, _ in LAUNCH}
    return FakeAction({**metrics, **FACTS, **changed})


def read(*ranges: list[FakeAction]) -> tuple[Launch, ...]:
    profile = ncu_rep.read_report("x.ncu-rep", module=fake_module(fake_report(*ranges)))
    assert profile.form == "report"
    return profile.launches


def test_the_same_launch_through_report_raw_and_details() -> None:
    (from_report,) = read([action()])
    launch = identity(0, kernel=NAMES[0])
    (from_details,) = parse_ncu_csv(
        details(
            (launch, [(section, name, unit, text) for _, section, name, unit, _, text in LAUNCH])
        )
    ).launches
    (from_raw,) = parse_ncu_csv(
        raw([(m[0], m[3]) for m in LAUNCH], (launch, [m[5] for m in LAUNCH]))
    ).launches
    wanted = {name for name, *_ in LAUNCH}
    assert "launch__occupancy_per_block_size" not in from_report.metrics, "a table in a cell"
    assert from_details.metrics == from_raw.metrics
    assert from_details.metrics.keys() == wanted
    assert {k: v for k, v in from_report.metrics.items() if k in wanted} == from_raw.metrics
    for other in (from_details, from_raw):
        assert from_report.kernel_name == other.kernel_name
        assert from_report.block == other.block == (128, 1, 1)
        assert from_report.grid == other.grid == (16, 16, 16)
        assert from_report.device == other.device == "0"
        assert from_report.compute_capability == other.compute_capability == "9.0"


def test_launches_are_numbered_through_all_ranges() -> None:
    launches = read([action(), action()], [action()])
    assert [(x.process_id, x.launch_id) for x in launches] == [(NO_PROCESS, i) for i in range(3)]
    assert launches[0].metrics["device__attribute_display_name"] == "NVIDIA H200"
    (launch,) = read([FakeAction({"gpu__time_duration.sum": ("ns", 1000)})])
    assert (launch.block, launch.grid) == (None, None)
    assert (launch.device, launch.compute_capability) == ("", "")
    assert launch.metrics == {"gpu__time_duration.sum": Quantity(1e-6, "s")}


@pytest.mark.parametrize(
    ("value", "reason"),
    [(None, "no data"), (float("nan"), "nan"), (float("inf"), "inf"), ("", "empty")],
)
def test_missing_values_are_missing(value: Value, reason: str) -> None:
    (launch,) = read([action(**{"gpu__time_duration.sum": ("ns", value)})])
    assert launch.metrics["gpu__time_duration.sum"] == Missing(reason)


@pytest.mark.parametrize(
    ("name", "unit", "value", "error"),
    [
        *(("gpu__time_duration.sum", unit, 5, UnknownUnit) for unit in ("aeon", "", "%", "minute")),
        ("gpu__time_duration.sum", "s", -5, ProfileFormatError),
        ("launch__registers_per_thread", "", 168.5, ProfileFormatError),
    ],
)
def test_units_and_values_are_checked(
    name: str, unit: str, value: Value, error: type[ProfileFormatError]
) -> None:
    with pytest.raises(error, match=rf"x\.ncu-rep, {name}: "):
        read([action(**{name: (unit, value)})])


@pytest.mark.parametrize("report", [RuntimeError("bad magic"), None, fake_report()])
def test_what_cannot_be_loaded_is_one_line(report: Any) -> None:
    with pytest.raises(ProfileFormatError, match=r"^x\.ncu-rep: ") as caught:
        ncu_rep.read_report("x.ncu-rep", module=fake_module(report))
    assert "\n" not in str(caught.value)


def test_without_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ncu_rep, "find_module", lambda: None)
    with pytest.raises(ToolMissing, match="--import FILE"):
        ncu_rep.read_report("x.ncu-rep")


def test_read_profile_uses_the_module_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.ncu-rep"
    path.write_bytes(b"NVR\x00\x10\x00")
    monkeypatch.setattr(ncu_rep, "find_module", lambda: fake_module(fake_report([action()])))
    assert read_profile(path).form == "report"


def test_the_module_is_found_in_an_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "ncu_report", raising=False)
    absent, broken, good = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    for folder in (absent, broken, good):
        folder.mkdir()
    (broken / "ncu_report.py").write_text("import _no_such_extension_module\n")
    assert ncu_rep.find_module([absent, broken]) is None
    (good / "ncu_report.py").write_text("def load_report(path): return path\n")
    before = list(sys.path)
    module = ncu_rep.find_module([absent, broken, good])
    assert module is not None
    assert module.load_report("x") == "x"
    assert sys.path == before
    del sys.modules["ncu_report"]  # not through monkeypatch, which would bring it back


def test_extras_of_the_ncu_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install = tmp_path / "2025.3.1"
    (install / "extras" / "python").mkdir(parents=True)
    (install / "ncu").write_text("#!/bin/sh\n")
    (install / "ncu").chmod(0o755)
    link = tmp_path / "bin"
    link.mkdir()
    (link / "ncu").symlink_to(install / "ncu")
    monkeypatch.setenv("PATH", str(link))
    assert ncu_rep.extras_folders(tmp_path)[0] == install / "extras" / "python"
