"""Runs the program in this process, as from a shell: both streams and the exit status.

Whatever JSON a command prints, in any test, has to fit its published schema.
"""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from fa_tune.cli import cli
from fa_tune.commands.documents import DOCUMENTS
from fa_tune.core import codec
from tests.project_files import ROOT


@dataclass(frozen=True)
class Done:
    """How a run ended."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The document that stood on stdout."""
        return json.loads(self.out)

    @property
    def rows(self) -> list[dict[str, str]]:
        """The rows of the CSV that stood on stdout."""
        return list(csv.DictReader(io.StringIO(self.out)))

    @property
    def lines(self) -> list[str]:
        """What stood on stderr, line by line."""
        return self.err.splitlines()


class Console:
    """`console("search", "--json")`; a bug's exception comes through."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> Done:
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            cli(list(arguments))
        said = self._capsys.readouterr()
        assert isinstance(left.value.code, int)
        _check_json(said.out)
        return Done(left.value.code, said.out, said.err)


def _check_json(text: str) -> None:
    """Raise jsonschema.ValidationError for a document that does not fit its schema."""
    try:
        document = json.loads(text)
    except ValueError:
        return
    if isinstance(document, dict) and "$schema" not in document:
        validator(document["schema"]).validate(document)


@cache
def validator(name: str | int) -> Draft202012Validator:
    """By a document's name; a registry's is a number."""
    schema = codec.schema(DOCUMENTS["registry" if isinstance(name, int) else name])
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def on_a_terminal(command: Sequence[str], folder: Path, **environment: str) -> tuple[str, str, int]:
    """What the terminal on stderr got of a command, its stdout, and its status."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "TERM": "xterm", "PYTHONPATH": str(ROOT), **environment},
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
    ) as child:
        os.close(theirs)
        seen = b""
        with suppress(OSError):  # the terminal is gone with its last user
            while data := os.read(ours, 65536):
                seen += data
        out, _ = child.communicate(timeout=30)
    os.close(ours)
    return seen.decode(errors="replace"), out, child.returncode


def words(text: str) -> list[str]:
    """The arguments of a command line without quoted blanks."""
    return text.split()
