"""The exceptions of fa-tune and the exit status each one ends in.

    FaTuneError                 1   (never raised itself)
    ├── InvalidConfig           2   a name, key or knob value that means nothing here
    ├── ToolMissing             3   ncu, a compiler, a GPU or a driver is not there
    │   ├── GpusLost            3   every GPU stopped working
    │   ├── DriverError         3   the CUDA driver refused or failed
    │   └── jobs.WorkerUnusable 3   worker processes cannot get started
    ├── StorageError            3   a file or folder cannot be written or read
    ├── NoUsableVariant         4   everything was rejected, failed, or has no recording
    │   └── nvrtc.CompileError  4   the compiler refused the source
    ├── ProfileFormatError      5   a profiler file is malformed
    │   └── UnknownUnit         5
    ├── RegistryError           5   a registry does not fit its schema
    └── JournalError            5   a journal is damaged, or is none

Exit status 2 is click's own for usage errors; a bug keeps its traceback.
"""

from __future__ import annotations

import json
import re


def first_line(error: BaseException) -> str:
    """The first line of an error's text."""
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__


def one_line(text: str) -> str:
    """Without line breaks."""
    return " ".join(text.split())


def shown(text: str) -> str:
    """Foreign text as it may be printed: what would move a terminal's cursor, colour its lines or
    turn their direction is escaped as JSON escapes it, so that a document stays one."""
    return text if text.isprintable() else _OTHER.sub(_escaped, text)


_OTHER = re.compile(r"[^ -~\n\t\u00a0]")


def _escaped(found: re.Match[str]) -> str:
    return found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1]


class FaTuneError(Exception):
    """Something a user can cause or mend; shown as one line `error: …`, whatever foreign names are
    in it.

    `exit_status` is what the command line returns for it.
    """

    exit_status = 1

    def __str__(self) -> str:
        return shown(super().__str__())


class InvalidConfig(FaTuneError, ValueError):
    """A config, workload, dtype or key that cannot be understood."""

    exit_status = 2


class ToolMissing(FaTuneError):
    """A program, library, device or permission that the work needs is absent."""

    exit_status = 3


class GpusLost(ToolMissing):
    """No GPU is left to go on with."""


class DriverError(ToolMissing):
    """A call of the CUDA driver failed; the message has the call and the driver's name for it."""


class StorageError(FaTuneError):
    """A path cannot be read or written; the message names it and the cause."""

    exit_status = 3


class NoUsableVariant(FaTuneError):
    """The work ran, and nothing usable came out."""

    exit_status = 4


class ProfileFormatError(FaTuneError):
    """A profiler file that is malformed, truncated or of an unsupported form."""

    exit_status = 5


class UnknownUnit(ProfileFormatError):
    """A time, rate or size with a unit that has no known conversion."""


class RegistryError(FaTuneError):
    """A registry file that does not fit the schema."""

    exit_status = 5


class JournalError(FaTuneError):
    """A journal that cannot be read, or another file in its place."""

    exit_status = 5
