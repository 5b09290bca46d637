"""Stands in for ncu, GPU and driver: `fake_ncu.py [OPTIONS] PROGRAM…` or a question.

It reads ncu's command line, runs the program, and writes the log that ncu would write for the
launches that the program tells of (see `ncu_child.py`).  The JSON in $FAKE_NCU makes it
misbehave:

    version      another text for --version
    lacks        metrics that this chip does not have
    log          a log of failure that it writes instead of any result
    stops        it ends the program before the first launch, as after a failed set-up
    on_sigterm   how many rows of its table it still writes, and half of the next, when it is
                 told to end; otherwise it writes nothing then
    status       its exit status, whatever the program's

Everything it was asked is appended to $FAKE_NCU_CALLS, a JSON line per call.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

BEHAVIOUR: dict[str, Any] = json.loads(os.environ.get("FAKE_NCU", "{}"))
VERSION = "2025.3.1.0 (build 36398880) (public-release)"
WITHOUT_VALUE = ("--csv", "--print-fp", "--force-overwrite", "--nvtx")
IDENTITY = (
    "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream",
    "Block Size", "Grid Size", "Device", "CC",
)  # fmt: skip
REGISTERS = 168
PASSES = 3
CLOCK_HZ = 1_755_000_000.25


def main(arguments: list[str]) -> int:
    options, program = split(arguments)
    call = {"arguments": arguments, "TMPDIR": os.environ.get("TMPDIR"), "program": bool(program)}
    call |= {name: os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "LC_ALL")}
    with open(os.environ["FAKE_NCU_CALLS"], "a") as calls:
        calls.write(json.dumps(call) + "\n")
    if arguments == ["--version"]:
        print("NVIDIA (R) Nsight Compute Command Line Profiler")
        print(BEHAVIOUR.get("version", f"Version {VERSION}"))
        return 0
    if "--query-metrics" in options:
        lacking = BEHAVIOUR.get("lacks", [])
        for name in ("gpu__time_duration", "sm__cycles_elapsed", "dram__cycles_elapsed"):
            if not any(metric.startswith(name) for metric in lacking):
                print(f"{name:<40} Counter")
        print("lts__t_sector_hit_rate.pct               Ratio")
        return 0
    if "--import" in options:
        report = Path(options["--import"])
        if not report.exists():
            print(f"==ERROR== Failed to open '{report}'")
            return 1
        Path(options["--log-file"]).write_text(report.read_text())
        return 0
    return profile(options, program)


def split(arguments: list[str]) -> tuple[dict[str, str], list[str]]:
    """The options with their values, and the program's command line."""
    options: dict[str, str] = {}
    left = list(arguments)
    while left and left[0].startswith("-"):
        name = left.pop(0)
        takes = name not in WITHOUT_VALUE and left
        options[name] = left.pop(0) if takes and not left[0].startswith("--") else ""
    return options, left


def profile(options: dict[str, str], program: list[str]) -> int:
    log = Path(options["--log-file"])
    metrics = options["--metrics"].split(",")
    missing = [metric for metric in metrics if metric in BEHAVIOUR.get("lacks", [])]
    if missing:
        log.write_text("".join(f"==ERROR== Failed to find metric {m}\n" for m in missing))
        return 1
    launches = log.with_name("launches.jsonl")
    environment = {**os.environ, "FAKE_NCU_LAUNCHES": str(launches)}
    if BEHAVIOUR.get("stops"):
        environment["FAKE_NCU_STOPS"] = "1"
    child = subprocess.Popen(program, env=environment)

    def told_to_end(*_: object) -> NoReturn:
        if (rows := BEHAVIOUR.get("on_sigterm")) is not None:
            before, units, table = text(child.pid, launches, metrics).partition('"","",')
            lines = table.splitlines(keepends=True)
            whole, cut = lines[: rows + 1], "".join(lines[rows + 1 : rows + 2])
            log.write_text(before + units + "".join(whole) + cut[: len(cut) // 2])
        os._exit(1)

    signal.signal(signal.SIGTERM, told_to_end)
    status = child.wait()
    status = 128 - status if status < 0 else status
    if BEHAVIOUR.get("log"):
        log.write_text(BEHAVIOUR["log"])
    elif "--export" in options:
        Path(options["--export"]).write_text(text(child.pid, launches, metrics))
        log.write_text(f"==PROF== Report: {options['--export']}\n")
    else:
        log.write_text(text(child.pid, launches, metrics, status))
    # --check-exit-code is on: a failing program makes ncu fail.
    return int(BEHAVIOUR.get("status", status))


def text(pid: int, launches: Path, metrics: list[str], status: int = 0) -> str:
    """The log: ncu's own lines, then the raw page of all launches."""
    lines = [
        "==WARNING== Note: Running with unmodified GPU clocks.",
        f"==PROF== Connected to process {pid} (/usr/bin/python3.12)",
        f"==PROF== Disconnected from process {pid}",
    ]
    if status:
        lines.append(f"==ERROR== The application returned an error code ({status}).")
    made = (
        [json.loads(line) for line in launches.read_text().splitlines()]
        if launches.exists()
        else []
    )
    if not made:
        lines.append("==WARNING== No kernels were profiled.")
        return "\n".join(lines) + "\n"
    columns = [*metrics, "device__attribute_display_name", "profiler__replayer_passes"]
    lines.append(csv([*IDENTITY, *columns]))
    lines.append(csv([*[""] * len(IDENTITY), *(unit(name) for name in columns)]))
    for number, launch in enumerate(made):
        identity = (
            str(number), str(pid), "python3.12", "127.0.0.1", launch["kernel"], "1", "7",
            "(128, 1, 1)", "(64, 16, 16)", "0", "9.0",
        )  # fmt: skip
        lines.append(csv([*identity, *(value(name, launch["duration_ns"]) for name in columns)]))
    return "\n".join(lines) + "\n"


def unit(metric: str) -> str:
    if metric.startswith("gpu__time_duration"):
        return "ns"
    if metric.endswith(".per_second"):
        return "byte/second" if "bytes" in metric else "hz"
    if "pct" in metric:
        return "%"
    return {
        "launch__registers_per_thread": "register/thread",
        "profiler__replayer_passes": "pass",
        "device__attribute_display_name": "",
    }.get(metric, "byte" if "bytes" in metric else "cycle" if "cycles" in metric else "inst")


def value(metric: str, duration_ns: int) -> str:
    if metric.startswith("gpu__time_duration"):
        return f"{duration_ns:,}"
    if metric.endswith(".per_second"):
        return f"{CLOCK_HZ:,.2f}"
    if metric.startswith("sm__cycles_elapsed"):
        return f"{round(duration_ns * 1.755):,}"
    return {
        "launch__registers_per_thread": str(REGISTERS),
        "profiler__replayer_passes": str(PASSES),
        "device__attribute_display_name": "NVIDIA H200",
    }.get(metric, "87.50")


def csv(fields: list[str]) -> str:
    return ",".join('"' + field.replace('"', '""') + '"' for field in fields)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
