"""Files that commands write: whole, or as they were."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from fa_tune.commands.shared.output import write_table_csv
from fa_tune.core.errors import StorageError
from tests.store.full_disk import refused_with_room


def test_a_table_that_does_not_fit_or_is_interrupted_leaves_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("as it was\n")
    rows = [["x" * 100]] * 1000
    assert str(path) in refused_with_room(4096, lambda: write_table_csv(["name"], rows, path))
    assert path.read_text() == "as it was\n"
    assert list(tmp_path.iterdir()) == [path]

    def interrupted():  # type: ignore[no-untyped-def]
        yield ["one"]
        raise KeyboardInterrupt

    path = tmp_path / "table.csv"
    path.write_text("as it was\n")
    with pytest.raises(KeyboardInterrupt):
        write_table_csv(["name"], interrupted(), path)
    assert path.read_text() == "as it was\n"


def test_a_pipe_and_a_full_device_are_written_to(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_table_csv(["name"], [["one"]], pipe)
    reader.join()
    assert read == ["name\none\n"]
    with pytest.raises(StorageError, match="/dev/full"):
        write_table_csv(["name"], [["one"]], Path("/dev/full"))
