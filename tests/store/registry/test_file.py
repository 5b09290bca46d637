"""The registry's file: whole or untouched, whoever writes and whatever the disk does."""

from __future__ import annotations

import errno
import os
import random
import stat
import time
from functools import partial
from pathlib import Path

import pytest
from filelock import FileLock

from fa_tune.core.errors import RegistryError, StorageError
from fa_tune.core.model import Variant
from fa_tune.core.stats import Ratio
from fa_tune.store.registry import file as registry_file
from fa_tune.store.registry.combine import FoundEntry
from fa_tune.store.registry.schema import Entry, Registry, RunnerUp, from_json
from fa_tune.store.shared_files import check_lockable
from tests.store.full_disk import (
    killed,
    make_read_only,
    refused_with_room,
    side_by_side,
    take_locks_away,
)
from tests.store.registry.conftest import MakeEntry


def found(*entries: Entry) -> list[FoundEntry]:
    """Entries that were chosen among all that they tell of."""
    return [FoundEntry(e, others_of(e)) for e in entries]


def others_of(entry: Entry) -> dict[Variant, RunnerUp]:
    tied = {v: RunnerUp(v, entry.median_s, Ratio(1.0, None)) for v in entry.tie_set}
    others = tied | {runner.variant: runner for runner in entry.runners_up}
    return {variant: runner for variant, runner in others.items() if variant != entry.chosen}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "registry.json"


def test_what_is_saved_is_loaded(path: Path, make_entry: MakeEntry) -> None:
    registry = Registry.of([make_entry(), make_entry(1024)])
    registry_file.save(path, registry)
    assert registry_file.load(path) == registry
    registry_file.save(path, Registry.of())
    assert registry_file.load(path) == Registry.of()
    registry_file.put(path, found(make_entry(n=50), make_entry(1024)))
    assert registry_file.put(path, found(make_entry(n=5), make_entry(method="events"))) == ()
    assert registry_file.load(path) == Registry.of(
        [make_entry(n=5), make_entry(1024), make_entry(method="events")]
    )


def test_a_missing_file_is_empty_and_loading_creates_nothing(path: Path) -> None:
    assert registry_file.load(path) == Registry.of()
    assert not path.parent.exists()


def test_a_replay_never_replaces_a_measurement(path: Path, make_entry: MakeEntry) -> None:
    replay = make_entry(source="replay", recording="profiles/a.csv", n=50)
    assert registry_file.put(path, found(replay)) == ()
    assert registry_file.put(path, found(make_entry())) == ()
    (said,) = registry_file.put(path, found(replay, make_entry(1024)))
    assert "kept the measured entry" in said
    assert registry_file.load(path) == Registry.of([make_entry(), make_entry(1024)])


# Never overwritten


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "line 1, column 1"),
        (b'{"schema": 1,\n"entries": [', "line 2, column 13"),
        (b"\xff\xfe", "not UTF-8"),
        (b'{"schema": 1, "entries": [7]}', "entries[0]"),
        (b'{"schema": 99}', "schema 99 is newer"),
        (b"my notes", "not JSON"),
    ],
)
def test_a_file_that_does_not_read_is_left_as_it_is(
    path: Path, make_entry: MakeEntry, content: bytes, said: str
) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    for action in (
        lambda: registry_file.load(path),
        lambda: registry_file.save(path, Registry.of()),
        lambda: registry_file.put(path, found(make_entry())),
    ):
        with pytest.raises(RegistryError) as e:
            action()
        assert str(e.value).startswith(f"{path}: ")
        assert said in str(e.value)
        assert "\n" not in str(e.value)
    assert path.read_bytes() == content


def test_a_result_that_could_not_be_read_back_is_not_written(
    path: Path, make_entry: MakeEntry
) -> None:
    registry_file.put(path, found(make_entry()))
    before = path.read_bytes()
    with pytest.raises(RegistryError, match=r"entries\[0\].median_s"):
        registry_file.put(path, found(make_entry(1024, median_s=float("inf"))))
    assert path.read_bytes() == before


# Several writers, and killed ones


def put_some(path: Path, entries: list[Entry]) -> None:
    for entry in entries:
        registry_file.put(path, found(entry))


def test_concurrent_writers_lose_nothing(path: Path, make_entry: MakeEntry) -> None:
    entries = [
        [make_entry(2**i, gpu=f"GPU {w}", recorded_at="2026-01-02") for i in range(5, 15)]
        for w in range(3)
    ]
    writers = (partial(put_some, path, some) for some in entries)
    # A reader never sees half a file.
    side_by_side(*writers, meanwhile=lambda: registry_file.load(path))
    assert registry_file.load(path) == Registry.of([e for some in entries for e in some])


def put_until_killed(path: Path, entry: Entry, other: Entry, ready: int) -> None:
    for _ in range(10_000):
        registry_file.put(path, found(entry))
        os.write(ready, b".")
        registry_file.put(path, found(other))


def test_kill_9_leaves_the_old_file_or_the_new_one(path: Path, make_entry: MakeEntry) -> None:
    rng = random.Random(11)
    one, two = make_entry(n=1, interval_s=None), make_entry(n=2)
    for _ in range(10):
        writer = partial(put_until_killed, path, one, two)
        assert killed(writer, rng.uniform(0.0, 0.02)).startswith(b".")
        assert registry_file.load(path).entries in ((one,), (two,))
    registry_file.put(path, found(make_entry(1024)))
    assert len(registry_file.load(path).entries) == 2
    assert {p.name for p in path.parent.iterdir()} <= {path.name, f"{path.name}.lock"}


def test_a_lock_held_too_long_is_one_line(
    path: Path, make_entry: MakeEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry_file.put(path, found(make_entry()))
    monkeypatch.setattr("fa_tune.store.shared_files.LOCK_TIMEOUT_S", 0.05)
    with FileLock(f"{path}.lock"):
        with pytest.raises(StorageError, match="locked by another process"):
            registry_file.put(path, found(make_entry()))
        assert len(registry_file.load(path).entries) == 1  # reading waits for nobody


# Disks that refuse


@pytest.mark.parametrize("answer", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_registry_is_kept_where_the_file_system_has_no_locks(
    path: Path, make_entry: MakeEntry, monkeypatch: pytest.MonkeyPatch, answer: int
) -> None:
    take_locks_away(monkeypatch, answer)
    for length in (512, 1024):
        registry_file.put(path, found(make_entry(length)))
    assert len(registry_file.load(path).entries) == 2
    assert {p.name for p in path.parent.iterdir()} == {path.name, f"{path.name}.lock"}
    monkeypatch.setattr("fa_tune.store.shared_files.LOCK_TIMEOUT_S", 0.05)
    check_lockable(path, "registry")
    assert {p.name for p in path.parent.iterdir()} == {path.name, f"{path.name}.lock"}
    with monkeypatch.context() as without_links:

        def no_links(*_: object) -> None:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))

        without_links.setattr(os, "symlink", no_links)
        with pytest.raises(StorageError, match=r"cannot lock registry .*not permitted"):
            check_lockable(path, "registry")
    os.symlink(f"another-host {os.getpid()}", f"{path}.held")
    with pytest.raises(StorageError, match="another process"):
        registry_file.put(path, found(make_entry(2048)))


@pytest.mark.parametrize("planted", [".{}.new", "{}.lock"])
def test_a_link_in_place_of_a_file_beside_it_is_not_followed(
    path: Path, make_entry: MakeEntry, planted: str
) -> None:
    victim = path.parent / "victim"
    path.parent.mkdir(exist_ok=True)
    victim.write_text("theirs")
    link = path.with_name(planted.format(path.name))
    link.symlink_to(victim)
    try:
        registry_file.put(path, found(make_entry()))
        assert len(registry_file.load(path).entries) == 1
    except StorageError as error:
        assert link.name.endswith(".lock") and "\n" not in str(error)  # noqa: PT017, PT018
    assert victim.read_text() == "theirs"


def test_where_no_lock_can_be_made_it_is_said_at_once(make_entry: MakeEntry) -> None:
    """Of /proc the system says that a new file does not exist."""
    began = time.monotonic()
    with pytest.raises(StorageError, match=r"cannot write registry /proc/q\.json") as caught:
        registry_file.put(Path("/proc/q.json"), found(make_entry()))
    assert "\n" not in str(caught.value)
    assert time.monotonic() - began < 10.0


def test_a_full_disk_is_one_line_and_leaves_the_old_file(path: Path, make_entry: MakeEntry) -> None:
    registry_file.put(path, found(make_entry()))
    before = path.read_bytes()
    message = refused_with_room(1000, lambda: registry_file.put(path, found(make_entry(1024))))
    assert message.startswith(f"cannot write registry {path}: ")
    assert "\n" not in message
    assert path.read_bytes() == before
    assert {p.name for p in path.parent.iterdir()} <= {path.name, f"{path.name}.lock"}


def test_a_read_only_disk_can_be_read_and_refuses_writing_in_one_line(
    path: Path, make_entry: MakeEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry_file.put(path, found(make_entry()))
    make_read_only(monkeypatch)
    assert len(registry_file.load(path).entries) == 1
    with pytest.raises(StorageError, match=r"cannot write registry .*: Read-only file system"):
        registry_file.put(path, found(make_entry()))


def test_a_failure_of_the_last_step_leaves_the_old_file(
    path: Path, make_entry: MakeEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry_file.put(path, found(make_entry()))
    before = path.read_bytes()

    def no_rename(source: object, target: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "replace", no_rename)
    with pytest.raises(StorageError, match="Input/output error"):
        registry_file.put(path, found(make_entry(1024)))
    assert path.read_bytes() == before
    assert {p.name for p in path.parent.iterdir()} <= {path.name, f"{path.name}.lock"}


def test_a_path_that_cannot_be_is_a_storage_error(tmp_path: Path, make_entry: MakeEntry) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="Not a directory"):
        registry_file.load(tmp_path / "file" / "r.json")
    with pytest.raises(StorageError, match="cannot write registry"):
        registry_file.put(tmp_path / "file" / "r.json", found(make_entry()))
    with pytest.raises(StorageError, match="Is a directory"):
        registry_file.load(tmp_path)


def test_a_link_stays_a_link_and_the_mode_stays(path: Path, make_entry: MakeEntry) -> None:
    real = path.parent / "real" / "r.json"
    registry_file.put(real, found(make_entry()))
    real.chmod(0o640)
    path.symlink_to(real)
    registry_file.put(path, found(make_entry(1024)))
    assert path.is_symlink()
    assert len(registry_file.load(real).entries) == 2
    assert stat.S_IMODE(real.stat().st_mode) == 0o640


def test_text_in_a_registry_is_never_executed(path: Path, make_entry: MakeEntry) -> None:
    marker = path.parent / "executed"
    hostile = f"__import__('pathlib').Path({str(marker)!r}).touch()"
    registry_file.put(path, found(make_entry(reason=hostile, extra={"!!python/object": hostile})))
    assert registry_file.load(path).entries[0].reason == hostile
    assert from_json(path.read_bytes(), "r").entries[0].provenance.extra["!!python/object"]
    assert not marker.exists()
