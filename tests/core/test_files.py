"""Files are replaced whole, or left as they were."""

from __future__ import annotations

import os
import stat
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
