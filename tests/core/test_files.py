"""Files are replaced whole, or left as they were."""

import errno
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fa_tune.core.files import replace_file, replace_files
from tests.store.full_disk import FORK


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("synced", [False, True])
def test_a_file_is_replaced_and_nothing_left_beside_it(
    tmp_path: Path, alone: bool, synced: bool
) -> None:
    path = tmp_path / "a.csv"
    for data in (b"one", b"another"):
        replace_file(path, data, alone=alone, synced=synced)
        assert path.read_bytes() == data
    assert names(tmp_path) == {"a.csv"}


def test_of_several_files_all_are_replaced_or_none(tmp_path: Path) -> None:
    first, second = tmp_path / "a.csv", tmp_path / "none" / "a.json"
    first.write_bytes(b"as it was")
    with pytest.raises(FileNotFoundError):
        replace_files({first: b"new", second: b"new"})
    assert first.read_bytes() == b"as it was"
    assert names(tmp_path) == {"a.csv"}


def test_a_link_stays_a_link_and_a_mode_a_mode(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_bytes(b"old")
    real.chmod(0o640)
    link.symlink_to(real)
    replace_file(link, b"new")
    assert link.is_symlink()
    assert real.read_bytes() == b"new"
    assert stat.S_IMODE(real.stat().st_mode) == 0o640


def test_a_new_file_has_the_mode_of_any_other(tmp_path: Path) -> None:
    replace_file(tmp_path / "a", b"")
    (tmp_path / "b").write_bytes(b"")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_a_pipe_stays_a_pipe(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    replace_file(pipe, b"data")
    reader.join()
    assert read == [b"data"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_what_the_shell_opened_is_written_to(tmp_path: Path) -> None:
    """`--csv /dev/stdout > FILE`: a new file of that name would not be what the shell has."""
    path = tmp_path / "out"
    with path.open("wb") as out:
        replace_file(Path(f"/dev/fd/{out.fileno()}"), b"data")
        assert os.fstat(out.fileno()).st_ino == path.stat().st_ino
    assert path.read_bytes() == b"data"


def test_a_folder_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        replace_file(tmp_path / "folder", b"data")
    assert names(tmp_path) == {"folder"}


def write_often(path: Path, data: bytes) -> None:
    for _ in range(200):
        replace_file(path, data, synced=False)


def test_writers_without_a_lock_do_not_mix(tmp_path: Path) -> None:
    path, texts = tmp_path / "a", (b"a" * 50_000, b"b" * 70_000)
    replace_file(path, texts[0])
    children = [FORK.Process(target=write_often, args=(path, text)) for text in texts]
    for child in children:
        child.start()
    while any(child.is_alive() for child in children):
        assert path.read_bytes() in texts
    for child in children:
        child.join()
        assert child.exitcode == 0
    assert names(tmp_path) == {"a"}


def test_reading_reserves_no_more_than_the_file_holds(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"data")
    limited = (
        "import resource, sys, pathlib; from fa_tune.core.files import read_bytes; "
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29)); "
        "print(read_bytes(pathlib.Path(sys.argv[1])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", limited, str(tmp_path / "a")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "b'data'\n", done.stderr


def test_a_folder_that_is_not_synced_is_told_as_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, sync = tmp_path / "a", os.fsync

    def refuse_folders(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(fd)

    monkeypatch.setattr(os, "fsync", refuse_folders)
    with pytest.raises(OSError, match="it is replaced, but may be lost"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == {"a"}


def test_what_is_replaced_is_on_the_disk_before_its_name_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "a", []

    def note(fd: int) -> None:
        found = os.fstat(fd)
        synced.append((stat.S_ISDIR(found.st_mode) or found.st_size, path.exists()))

    monkeypatch.setattr(os, "fsync", note)
    replace_file(path, b"new")
    assert synced == [(len(b"new"), False), (True, True)]
