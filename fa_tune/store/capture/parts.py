"""What the processes of a program write while they run, and the one capture of them all."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

from fa_tune.core import codec
from fa_tune.core.errors import FaTuneError
from fa_tune.core.files import read_json, replace_file
from fa_tune.store.capture.schema import Capture, load, merged

VARIABLE = "FA_TUNE_CAPTURE"  # names the folder of the parts, for the program
_SETTINGS = "settings.json"
_PART = ".part.json"


@dataclass(frozen=True)
class Settings:
    """What the program's processes are told: the folder of their parts, and where Q, K and V of so
    many problems go."""

    folder: Path
    inputs: Path
    keep_inputs: int = 0

    def save(self) -> None:
        text = json.dumps(codec.dump(self))
        replace_file(self.folder / _SETTINGS, text.encode(), synced=False)

    @classmethod
    def of(cls, folder: Path) -> Settings:
        return codec.load(cls, read_json(folder / _SETTINGS))

    def new_part(self) -> Path:
        return self.folder / f"{os.getpid()}-{time.monotonic_ns()}{_PART}"


def joined(program: Capture, folder: Path) -> Capture:
    """A program's capture with what its processes wrote into a folder."""
    notes = [*program.notes]
    parts = []
    for path in sorted(folder.glob(f"*{_PART}")):
        try:
            parts.append(load(path))
        except FaTuneError as error:
            notes.append(f"a process's part was lost: {error}")
    if not parts:
        notes.append("no process with fa-tune imported torch, or Python ran with -I, -E or -S")
    for part in parts:
        notes += part.notes
    return replace(
        program,
        processes=tuple(process for part in parts for process in part.processes),
        usages=merged(usage for part in parts for usage in part.usages),
        notes=tuple(dict.fromkeys(notes)),
    )
