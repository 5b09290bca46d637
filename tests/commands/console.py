"""Runs the program in this process, as from a shell: both streams and the exit status."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from fa_tune.cli import cli


@dataclass(frozen=True)
class Done:
    """How a run ended."""

    status: int
    out: str
    err: str

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
        return Done(left.value.code, said.out, said.err)


def words(text: str) -> list[str]:
    """The arguments of a command line without quoted blanks."""
    return text.split()
