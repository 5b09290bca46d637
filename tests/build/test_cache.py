"""The artifact store: keys, damage, concurrent writers, folders that cannot be written."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fa_tune.build import cache
from fa_tune.build.cache import ArtifactKey, ArtifactStore, source_sha256
from fa_tune.build.ptxas_log import CompiledKernel, KernelFacts
from fa_tune.build.worker import Compilation
from fa_tune.core.errors import StorageError
from fa_tune.core.model import Outcome

KEY = ArtifactKey(
    headers_sha256=source_sha256({"a.cuh": "int a;", "b.cuh": "int b;"}),
    entry_source='#include "a.cuh"\n',
    options=("--gpu-architecture=sm_90", "-std=c++20"),
    nvrtc="13.0.88",
    arch="sm_90",
    name_expression="k<1>",
)
GOOD = Compilation(
    outcome=Outcome.OK,
    log="ptxas info …",
    kernels=(CompiledKernel("_Z1kILi1EEvv", KernelFacts(32, 0, 4, 8, 1024, 1)),),
    diagnostics=("ptxas: (C7510) …",),
    compile_s=0.25,
)
FAILED = Compilation(outcome=Outcome.COMPILE_FAILED, reason="N must be 2", log="x.cu(1): error: …")
CUBIN = b"\x7fELF" + bytes(range(256))


@pytest.fixture
def warnings() -> list[str]:
    return []


@pytest.fixture
def store(tmp_path: Path, warnings: list[str]) -> ArtifactStore:
    return ArtifactStore(tmp_path / "cache", warn=warnings.append)


def _key(number: int) -> ArtifactKey:
    return dataclasses.replace(KEY, name_expression=f"k<{number}>")


def _json(store: ArtifactStore, key: ArtifactKey = KEY) -> Path:
    return store.path / key.digest[:2] / f"{key.digest}.json"


def test_what_is_put_is_got(store: ArtifactStore, warnings: list[str]) -> None:
    assert store.get(KEY) is None
    stored = store.put(KEY, GOOD, CUBIN)
    assert store.get(KEY) == stored
    assert stored.entry == GOOD
    assert stored.cubin.is_absolute()
    assert stored.cubin.read_bytes() == CUBIN
    assert store.get(_key(2)) is None
    assert warnings == []


def test_failures_are_remembered_with_their_log(store: ArtifactStore) -> None:
    store.put(KEY, FAILED)
    stored = store.get(KEY)
    assert (stored.entry, stored.cubin) == (FAILED, None)


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(ArtifactKey)])
def test_every_part_of_the_key_counts(field: str) -> None:
    value = getattr(KEY, field)
    change: dict[str, Any] = {field: (*value, "-G") if field == "options" else value + " "}
    assert dataclasses.replace(KEY, **change).digest != KEY.digest


@pytest.mark.parametrize(
    "moved",
    [
        {"nvrtc": "13.0.88s", "arch": "m_90"},
        {"arch": "sm_90k", "name_expression": "<1>"},
        {"options": ("--gpu-architecture=sm_90-", "std=c++20")},
        {"options": ("--gpu-architecture=sm_90-std=c++20",)},
        {"options": (*KEY.options, KEY.nvrtc), "nvrtc": ""},
    ],
)
def test_parts_of_the_key_do_not_run_together(moved: dict[str, Any]) -> None:
    assert dataclasses.replace(KEY, **moved).digest != KEY.digest
    assert source_sha256({"a": "bc"}) != source_sha256({"ab": "c"})


def test_the_source_hash_sees_names_and_texts_but_not_order() -> None:
    files = {"a.cuh": "1", "b.cuh": "2"}
    assert source_sha256(files) == source_sha256(dict(reversed(files.items())))
    others = [{"a.cuh": "2", "b.cuh": "1"}, {"a.cuh": "1"}, {"a.cuh": "1b.cuh", "": "2"}]
    assert len({source_sha256(f) for f in (files, *others)}) == 4


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _edit_entry(path: Path, **changes: object) -> None:
    _edit(path, entry=json.loads(path.read_text())["entry"] | changes)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda j, c: _truncate(j), "not JSON"),
        (lambda j, c: j.write_bytes(b"\xff\xfe"), "not JSON"),
        (lambda j, c: j.write_text("[]"), "fields are wrong"),
        (lambda j, c: j.write_text("{}"), "fields are wrong"),
        (lambda j, c: _edit_entry(j, kernels=[{"symbol": "k"}]), "fields are wrong"),
        (lambda j, c: _edit_entry(j, kernels=[]), "does not go with its kernels"),
        (lambda j, c: _edit_entry(j, outcome="crashed"), "does not go with its kernels"),
        (lambda j, c: _edit_entry(j, outcome="splendid"), "fields are wrong"),
        (lambda j, c: _edit_entry(j, compile_s="slow"), "fields are wrong"),
        (lambda j, c: _edit(j, key={}), "fields are wrong"),
        (lambda j, c: _edit(j, key=vars(_key(2))), "another key"),
        (lambda j, c: _truncate(c), "cubin is not the one"),
        (lambda j, c: c.write_bytes(b""), "cubin is not the one"),
        (lambda j, c: c.unlink(), "cubin is missing"),
    ],
)
def test_a_damaged_entry_is_named_and_rebuilt(
    store: ArtifactStore, warnings: list[str], damage: object, said: str
) -> None:
    cubin = store.put(KEY, GOOD, CUBIN).cubin
    assert callable(damage)
    damage(_json(store), cubin)
    assert store.get(KEY) is None
    assert len(warnings) == 1
    assert said in warnings[0]
    assert str(_json(store)) in warnings[0]
    assert "\n" not in warnings[0]
    store.put(KEY, GOOD, CUBIN)
    assert store.get(KEY) is not None
    assert len(warnings) == 1


def test_a_write_cut_short_leaves_no_entry(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Path] = []
    replace = Path.replace

    def interrupted(self: Path, target: Path) -> Path:
        calls.append(target)
        if len(calls) == 2:  # the cubin is in place, the facts are not
            raise KeyboardInterrupt
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.put(KEY, GOOD, CUBIN)
    monkeypatch.undo()
    assert [path.suffix for path in calls] == [".cubin", ".json"]
    assert store.get(KEY) is None
    assert store.put(KEY, GOOD, CUBIN) == store.get(KEY)


def test_concurrent_writers_and_readers_never_see_half_an_entry(tmp_path: Path) -> None:
    # Writers whose code differs from each other's, as from a compiler that is not
    # deterministic: every read must still find facts and code that belong together.
    code = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from tests.build.test_cache import GOOD, _key
from fa_tune.build.cache import ArtifactStore
def warn(text):
    sys.exit("damaged: " + text)
store = ArtifactStore(Path(sys.argv[1]), warn=warn)
for i in range(150):
    key = _key(i % 5)
    store.put(key, GOOD, sys.argv[2].encode() * (i + 1))
    stored = store.get(key)
    assert stored is not None and stored.cubin.read_bytes()
"""
    root = str(Path(__file__).resolve().parents[2])
    command = [sys.executable, "-c", code, str(tmp_path)]
    writers = [
        subprocess.Popen([*command, name, root], stderr=subprocess.PIPE, text=True)
        for name in "abc"
    ]
    for writer in writers:
        _, stderr = writer.communicate(timeout=60)
        assert writer.returncode == 0, stderr
    assert not list(tmp_path.rglob("*.new"))


def test_a_folder_that_cannot_be_written_costs_one_warning(
    tmp_path: Path, warnings: list[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    store = ArtifactStore(tmp_path / "file" / "cache", warn=warnings.append)
    assert store.get(KEY) is None
    assert warnings == []
    for number in range(3):
        stored = store.put(_key(number), GOOD, CUBIN)
        assert store.get(_key(number)) == stored
    assert len(warnings) == 1
    assert "cannot be written" in warnings[0]
    assert "--cache-dir" in warnings[0]
    assert "\n" not in warnings[0]
    assert store.size() == (0, 0)


@pytest.mark.parametrize("readable", [True, False])
def test_anothers_folder_answers_if_it_can_and_costs_one_warning(
    tmp_path: Path, warnings: list[str], monkeypatch: pytest.MonkeyPatch, readable: bool
) -> None:
    ArtifactStore(tmp_path).put(KEY, GOOD, CUBIN)
    replace_any, read_any = cache.replace_file, Path.read_bytes

    def replace(path: Path, *args: Any, **options: Any) -> None:
        if path.is_relative_to(tmp_path):
            raise OSError(30, "Read-only file system")
        replace_any(path, *args, **options)

    def read(path: Path) -> bytes:
        if not readable and path.is_relative_to(tmp_path):
            raise PermissionError(13, "Permission denied", str(path))
        return read_any(path)

    def no_utime(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(cache, "replace_file", replace)
    monkeypatch.setattr(Path, "read_bytes", read)
    monkeypatch.setattr(os, "utime", no_utime)
    store = ArtifactStore(tmp_path, warn=warnings.append)
    assert (store.get(KEY) is not None) == readable
    assert warnings == []
    for number in (2, 3):
        stored = store.put(_key(number), GOOD, CUBIN)
        assert store.get(_key(number)) == stored
    (warning,) = warnings
    assert "Read-only file system" in warning
    assert "--cache-dir" in warning


def test_no_folder_at_all_is_one_line(
    tmp_path: Path, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    store = ArtifactStore(tmp_path / "file", warn=warnings.append)

    def full(*_: object, **__: object) -> str:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("tempfile.mkdtemp", full)
    with pytest.raises(StorageError, match=r"Read-only file system.*--cache-dir"):
        store.put(KEY, GOOD, CUBIN)


def test_what_root_stores_others_can_read(store: ArtifactStore) -> None:
    umask = os.umask(0o022)
    try:
        cubin = store.put(KEY, GOOD, CUBIN).cubin
    finally:
        os.umask(umask)
    assert cubin.stat().st_mode & 0o777 == 0o644
    assert _json(store).stat().st_mode & 0o777 == 0o644


def test_size_counts_entries_and_bytes(store: ArtifactStore) -> None:
    assert store.size() == (0, 0)
    store.put(KEY, GOOD, CUBIN)
    store.put(_key(2), FAILED)
    assert store.size() == (2, sum(p.stat().st_size for p in store.path.rglob("*.*")))


@pytest.mark.parametrize("depth", range(4))
def test_what_other_users_may_write_is_not_taken(
    store: ArtifactStore, tmp_path: Path, depth: int
) -> None:
    cubin = store.put(KEY, GOOD, CUBIN).cubin
    path = (cubin, cubin.parent, store.path, store.path.parent)[depth]
    path.chmod(path.stat().st_mode | 0o002)
    with pytest.raises(StorageError, match=r"other users may write it; .*--cache-dir"):
        store.get(KEY)
    path.chmod(path.stat().st_mode & ~0o002)
    assert store.get(KEY) is not None
