"""Jobs for the tests of their supervision; the handlers are in tests/job_handlers.py."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from fa_tune.core.model import Outcome
from fa_tune.workers.supervisor import ChildEnd, ItemResult, run_child, run_items

TESTS = Path(__file__).parent.parent
SILENCE_S = 0.6  # the time limit of items that hang; ample for a record on a busy machine
NOISY_WRAPPER = [
    "sh",
    "-c",
    'echo "==PROF== Connected"; printf \'\\036{"kind":"finished"}\\n\'; "$@"; status=$?;'
    ' echo "==PROF== Disconnected"; exit $status',
    "wrapper",
]


def running(marker: Path) -> list[str]:
    """The command lines that mention a path; every worker's and wrapper's holds its job file."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes()
        except OSError:
            continue
        if str(marker).encode() in words and int(entry.parent.name) != os.getpid():
            found.append(words.replace(b"\0", b" ").decode())
    return found


def zombies() -> list[int]:
    """Our own children that ended and were not waited for."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent, *_ = entry.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if state == "Z" and int(parent) == os.getpid():
            found.append(int(entry.parent.name))
    return found


def wait_until(condition: Callable[[], bool], patience_s: float = 10) -> None:
    """Give the system time to make something true."""
    limit = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.02)


def start(
    doing: dict[str, Any], handler: str = "work", **options: Any
) -> Generator[ItemResult, None, None]:
    """run_items over items given as {name: what to do, or the whole spec}."""
    items = {name: do if isinstance(do, dict) else {"do": do} for name, do in doing.items()}
    shared = options.pop("shared", {})
    options = {"item_timeout_s": 20.0, "start_timeout_s": 20.0, **options}
    options["env"] = {"PYTHONPATH": str(TESTS), **options.get("env", {})}
    return run_items(f"job_handlers:{handler}", shared, items, **options)


def run(doing: dict[str, Any], handler: str = "work", **options: Any) -> dict[str, ItemResult]:
    """All results by item; each item must have exactly one."""
    results = list(start(doing, handler, **options))
    assert sorted(result.item for result in results) == sorted(doing)
    return {result.item: result for result in results}


def value_of(do: str) -> Any:
    """What a single well-behaved item returns."""
    result = run({"only": do})["only"]
    assert result.outcome is Outcome.OK
    return result.value


def pid_of(result: ItemResult) -> int:
    """The process that did an "ok" item."""
    assert result.value is not None
    return int(result.value["pid"])


def child(tmp_path: Path, doing: dict[str, str], **options: Any) -> ChildEnd:
    """run_child over `work`."""
    items = {name: {"do": do} for name, do in doing.items()}
    env = {"PYTHONPATH": str(TESTS)}
    return run_child(
        "job_handlers:work", {}, items, run_dir=tmp_path, item_timeout_s=20, env=env, **options
    )
