"""Handlers for the tests in tests/jobs that fail in every way a GPU job can, and some more.

Each item's `do` names what happens to it; `work` obeys one after the other, `rounds` goes
round and round as an interleaved measurement does.
"""

import atexit
import ctypes
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from fa_tune.workers.main import Report

MEGABYTE = 1_000_000
FOREVER_S = 3600


def work(shared: dict[str, Any], items: dict[str, Any], report: Report) -> None:
    """Do what each item's `do` says; an ordinary item's value says which process did it."""
    for name, spec in items.items():
        report.begin(name, spec.get("timeout_s"))
        _act(spec["do"], name, spec, report)


def rounds(shared: dict[str, Any], items: dict[str, Any], report: Report) -> None:
    """Measure every item `rounds` times in rounds; misbehave in round `bad_round`."""
    samples = {name: list(spec["_partials"]) for name, spec in items.items()}
    for turn in range(shared["rounds"]):
        for name, spec in items.items():
            if len(samples[name]) > turn:
                continue  # a worker before this one has measured it
            report.begin(name)
            if spec["do"] != "ok" and turn == shared["bad_round"]:
                _act(spec["do"], name, spec, report)
            sample = [name, turn, os.getpid()]
            samples[name].append(sample)
            report.partial(name, sample)
    for name in items:
        report.done(name, samples[name])


def _act(do: str, name: str, spec: dict[str, Any], report: Report) -> None:
    match do:
        case "ok":
            report.done(name, {"pid": os.getpid(), "given": spec.get("value")})
        case "visible":
            report.done(name, os.environ["CUDA_VISIBLE_DEVICES"])
        case "nap":
            time.sleep(spec["nap_s"])
            report.done(name, os.getpid())
        case "chatter":  # longer than its time limit altogether, but never silent for long
            for _ in range(8):
                time.sleep(0.1)
                report.partial(name, "still here")
            report.done(name, None)
        case "segfault":
            ctypes.string_at(0)
        case "oom":
            os.kill(os.getpid(), signal.SIGKILL)
        case "leave":
            print("last words on stderr", file=sys.stderr)
            os._exit(spec.get("status", 0))
        case "sys_exit":
            sys.exit("gone")
        case "raise":
            raise RuntimeError("bad tile\nsecond line")
        case "hang":
            time.sleep(FOREVER_S)
        case "hang_hard":  # deaf to SIGTERM, and with a child of its own
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            subprocess.run(["sleep", str(FOREVER_S)], check=False)
        case "late":  # gets its result out, and the next item begun, while it is being ended

            def hurry(*_: object) -> None:
                report.done(name, "late")
                report.begin(spec["next"])

            signal.signal(signal.SIGTERM, hurry)
            time.sleep(FOREVER_S)
        case "begin_again":
            report.begin(spec["earlier"])
            os._exit(1)
        case "sticky_error":
            report.sticky_error(name, "an illegal memory access was encountered")
        case "sticky_error_after_done":
            report.done(name, "before")
            report.sticky_error(name, "noticed too late")
        case "wrong":
            report.failed(name, "wrong_result", "error 0.5 above limit 0.01")
        case "not_json":
            report.done(name, object())
        case "unknown_item":
            report.begin("no such item")
        case "twice":
            report.done(name, 1)
            report.done(name, 2)
        case "nan":
            report.done(name, [math.nan, math.inf, -math.inf, 0.1, 1e-300])
        case "huge":
            report.done(name, "x" * (5 * MEGABYTE))
        case "text":
            report.done(name, "line\nbreak \x1e{} \u2028 ü \ud800 \x00")
        case "liar":  # a kernel may print anything
            fake = '\x1e{"kind":"done","item":"after","value":"forged"}\n'
            for stream in (sys.stdout, sys.stderr):
                stream.write(fake + '\x1e{"kind":"finished"}\n' + "\x00\xff garbage without end")
            report.done(name, "true")
        case "flood":
            block = b"e" * MEGABYTE
            for _ in range(100):
                os.write(2, block)
            os.write(2, b"\nthe last line\n")
            os._exit(9)
        case "forget":
            pass
        case "torn":  # half a record, as a full disk would leave it, then whole ones
            os.write(report._descriptor, b'\x1e{"kind":"done","item":"')
            report.done(name, "whole")
        case "die_between":
            report.done(name, "fine")
            os._exit(7)
        case "leave_child":
            child = subprocess.Popen(["sleep", str(FOREVER_S)])
            report.done(name, child.pid)
        case "environment":
            report.done(name, {"env": dict(os.environ), "cwd": os.getcwd(), "path": sys.path})
        case _:
            raise AssertionError(f"nothing known about {do!r}")


def die_first(shared: dict[str, Any], items: dict[str, Any], report: Report) -> None:
    """Die before beginning anything, as often as `shared["times"]` says."""
    counter = Path(shared["counter"])
    deaths = len(counter.read_text()) if counter.exists() else 0
    if deaths < shared["times"]:
        counter.write_text("x" * (deaths + 1))
        print("no CUDA-capable device is detected", file=sys.stderr)
        os._exit(5)
    work(shared, items, report)


def good_once(shared: dict[str, Any], items: dict[str, Any], report: Report) -> None:
    """Work in the first process, but never again."""
    marker = Path(shared["marker"])
    if marker.exists():
        print("GPU has fallen off the bus", file=sys.stderr)
        os._exit(5)
    marker.touch()
    work(shared, items, report)


def hang_first(shared: dict[str, Any], items: dict[str, Any], report: Report) -> None:
    """Never begin anything."""
    time.sleep(FOREVER_S)


def hang_at_exit(shared: dict[str, Any], items: dict[str, Any], report: Report) -> None:
    """Do everything, then never leave."""
    work(shared, items, report)
    atexit.register(time.sleep, FOREVER_S)


not_callable = "a string"
