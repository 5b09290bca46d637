"""A program run under a capture, whatever becomes of it."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from fa_tune.core.errors import ToolMissing
from fa_tune.core.files import save_file
from fa_tune.store.capture.parts import VARIABLE, Settings, joined
from fa_tune.store.capture.schema import SCHEMA, Capture, to_json

# A folder that has nothing but a module that Python runs first.
STARTUP = Path(__file__).parents[1] / "op" / "startup"
_PASSED_ON = (signal.SIGTERM, signal.SIGHUP)


def run(
    command: Sequence[str],
    out: Path,
    *,
    keep_inputs: int = 0,
    environment: Mapping[str, str] = os.environ,
) -> Capture:
    """Run a program with its standard streams as they are, and write what its processes captured to
    a file.  Signals reach it; its exit status is in the result.

    Raises ToolMissing for a program that cannot be started, StorageError for a file that cannot be
    written.
    """
    with tempfile.TemporaryDirectory(prefix="fa-tune-capture-") as name:
        folder = Path(name)
        inputs = out.absolute().with_name(f"{out.name}.inputs")
        Settings(folder, inputs, keep_inputs).save()
        began, started = time.perf_counter(), datetime.now(UTC).isoformat(timespec="seconds")
        status = _status_of(command, with_startup({**environment, VARIABLE: name}))
        program = Capture(
            schema=SCHEMA,
            command=tuple(command),
            started=started,
            wall_s=time.perf_counter() - began,
            exit_status=status,
            processes=(),
            usages=(),
        )
        capture = joined(program, folder)
    save_file(out, to_json(capture).encode())
    return capture


def with_startup(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a program whose Python processes begin with the module of STARTUP."""
    path = os.pathsep.join(filter(None, (str(STARTUP), environment.get("PYTHONPATH"))))
    return {**environment, "PYTHONPATH": path}


def _status_of(command: Sequence[str], environment: Mapping[str, str]) -> int:
    try:
        with _passing_signals_on() as running:
            child = subprocess.Popen(command, env=environment)
            running.append(child)
            return child.wait()
    except OSError as error:
        raise ToolMissing(f"cannot run {command[0]}: {error.strerror or error}") from None


@contextmanager
def _passing_signals_on() -> Iterator[list[subprocess.Popen[bytes]]]:
    """A terminal sends Ctrl-C to the program as well, which decides what becomes of it."""
    running: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, _frame: object) -> None:
        for child in running:
            child.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in _PASSED_ON}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield running
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
