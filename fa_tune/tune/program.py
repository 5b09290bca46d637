"""A program of a user's, run to its end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fa_tune.core.errors import ToolMissing
from fa_tune.core.signals import signal_name

SHOWN = 200  # characters of a line


@dataclass(frozen=True)
class Ended:
    """`status` as of a process, negative for a signal, None for one that was stopped when its time
    was over; `output` is what it wrote to both streams, `wall_s` from its start to its end."""

    status: int | None
    output: str
    wall_s: float

    @property
    def how(self) -> str:
        """`ended with status 1: ValueError: …`, with the last line that it wrote."""
        if self.status is None:
            what = f"did not end within {self.wall_s:.0f} s"
        elif self.status < 0:
            what = f"was ended by {signal_name(-self.status)}"
        else:
            what = f"ended with status {self.status}"
        last = next((s for s in map(str.strip, reversed(self.output.splitlines())) if s), "")
        return f"{what}: {last[:SHOWN]}" if last else what


def run(command: Sequence[str], environment: Mapping[str, str], limit_s: float | None) -> Ended:
    """Run it without input, and end all processes that it leaves; so does whatever is raised
    meanwhile.  Raises ToolMissing for one that cannot be started."""
    with tempfile.TemporaryFile() as output:
        began = time.perf_counter()
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # a group to be ended together
            )
        except OSError as error:
            raise ToolMissing(f"cannot start {command[0]}: {error.strerror}") from None
        status: int | None = None
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = process.wait(limit_s)
            wall_s = time.perf_counter() - began
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        return Ended(status, output.read().decode(errors="replace"), wall_s)
