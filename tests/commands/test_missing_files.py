"""A file that is not there is status 3, one that is malformed status 5, whichever command reads
it."""

from __future__ import annotations

import builtins
import errno
import io
import os
from pathlib import Path
from typing import Any

import pytest

from fa_tune.build.cache import ArtifactStore
from fa_tune.core import files
from tests.commands.console import Console

READS = [
    ("report", "FILE.csv"),
    ("explain", "--from", "FILE.json"),
    ("bench-search", "FILE.space.csv.gz"),
    ("spaces", "import", "FILE.json", "--to", "out.space.csv.gz"),
    ("registry", "merge", "FILE.json", "-o", "out.json"),
    ("bench-decisions", "--from", "FILE.json"),
]


@pytest.mark.parametrize("arguments", READS, ids=lambda a: " ".join(a[:2]))
def test_missing_is_3_and_malformed_is_5(
    console: Console, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    missing = console(*arguments)
    assert missing.status == 3, missing.err
    (name,) = [a for a in arguments if a.startswith("FILE")]
    assert name in missing.err
    assert len(missing.lines) == 1
    (tmp_path / name).write_bytes(b"\x00no such form\n")
    malformed = console(*arguments)
    assert malformed.status == 5, malformed.err
    assert malformed.lines[-1].startswith("error: ")


@pytest.mark.parametrize(
    "arguments",
    [
        *(arguments for arguments in READS if arguments[0] != "bench-search"),
        ("registry", "show", "--registry", "FILE.json"),
        ("judge", "--retake", "FILE.json"),
        ("bench-search", "--strategy", "none", "--add", "FILE.json"),
    ],
    ids=lambda a: " ".join(a[:2]),
)
def test_what_may_not_be_read_is_3(
    console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    """As for a user without the permission; root may read everything."""
    (name,) = [a for a in arguments if a.startswith("FILE")]
    (tmp_path / name).write_bytes(b"something\n")
    access, opened = os.access, io.open

    def refused(path: Any) -> bool:
        return isinstance(path, str | os.PathLike) and str(os.fspath(path)).endswith(name)

    def may(path: Any, mode: int, **settings: Any) -> bool:
        return not (refused(path) and mode & os.R_OK) and access(path, mode, **settings)

    def open_(path: Any, *settings: Any, **more: Any) -> Any:
        if refused(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opened(path, *settings, **more)

    monkeypatch.setattr(os, "access", may)
    monkeypatch.setattr(io, "open", open_)
    monkeypatch.setattr(builtins, "open", open_)
    done = console(*arguments)
    assert done.status == 3, done.err
    assert name in done.err
    assert len(done.lines) == 1


JSON_READS = [arguments for arguments in READS if "FILE.json" in arguments]
JSON_READS.append(("bench-search", "--strategy", "none", "--add", "FILE.json"))


@pytest.mark.parametrize(
    "arguments", [*JSON_READS, ("report", "FILE.json")], ids=lambda a: " ".join(a[:2])
)
def test_what_has_no_end_is_3(
    console: Console, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setattr(files, "MAX_BYTES", 1 << 16)
    done = console(*("/dev/zero" if a == "FILE.json" else a for a in arguments))
    assert done.status == 3, done.err
    assert "/dev/zero" in done.err


def test_a_score_hook_that_is_not_there_or_has_no_end_is_3(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_BYTES", 1 << 16)
    for name in ("absent.cuh", "/dev/zero"):
        done = console("search", "--score-hook", name)
        assert done.status == 3, done.err
        assert name in done.err


@pytest.mark.parametrize(
    "arguments",
    [("registry", "check"), ("bench-between",), ("search",), ("doctor",)],
    ids=lambda a: " ".join(a),
)
def test_recordings_that_are_not_there_are_3(console: Console, arguments: tuple[str, ...]) -> None:
    done = console(*arguments, "--recordings", "nowhere")
    assert done.status == 3, done.err
    assert "nowhere" in done.err + done.out


@pytest.mark.parametrize(
    "arguments",
    [
        ("report", "FOLDER"),
        ("spaces", "show", "FOLDER"),
        *(
            (*c, "--recordings", "FOLDER")
            for c in [("search",), ("registry", "check"), ("doctor",)]
        ),
    ],
    ids=lambda a: " ".join(a[:2]),
)
def test_a_folder_that_may_not_be_listed_does_not_count_as_empty(
    console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    (tmp_path / "FOLDER").mkdir()
    why = os.strerror(errno.EACCES)
    refused = {name: getattr(os, name) for name in ("listdir", "scandir")}
    for name, original in refused.items():

        def list_(path: Any = ".", original: Any = original) -> Any:
            if os.fspath(path) == "FOLDER":
                raise PermissionError(errno.EACCES, why, path)
            return original(path)

        monkeypatch.setattr(os, name, list_)
    done = console(*arguments)
    assert done.status == 3, done.err
    assert why in done.out + done.err


def test_a_cache_that_may_not_be_read_is_one_finding_of_doctor(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: ArtifactStore) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "cache")

    monkeypatch.setattr(ArtifactStore, "size", refuse)
    done = console("doctor", "--json")
    assert done.status == 3
    assert {c["name"] for c in done.json["checks"] if c["ok"] is False} == {"cache"}
