"""A registry's file: read at any time, written by lock, temporary file, fsync and rename.

A reader sees the old file or the new one, never half of one, and needs no lock.  A writer
reads, changes and writes under the lock, so that nobody's entry is lost.  A file that cannot
be read is never overwritten.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from platformdirs import user_data_path

from fa_tune.core.files import read_bytes, replace_file, storage_errors
from fa_tune.store.registry.combine import FoundEntry, combined
from fa_tune.store.registry.schema import Registry, from_json, to_json
from fa_tune.store.shared_files import locked

VARIABLE = "FA_TUNE_REGISTRY"


def default_path() -> Path:
    """The user's own registry: what the variable names, or a file in their data folder."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named else user_data_path("fa-tune") / "registry.json"


def load(path: Path | str) -> Registry:
    """The registry in a file; a missing file is an empty registry.

    Raises RegistryError for a file that does not fit the schema, StorageError for one that
    cannot be read.
    """
    path = Path(path)
    with storage_errors(f"cannot read registry {path}"):
        try:
            data = read_bytes(path, "registry")
        except FileNotFoundError:
            return Registry.of()
    return from_json(data, str(path))


def update(path: Path | str, change: Callable[[Registry], Registry]) -> Registry:
    """Replace the registry in a file by what `change` makes of it; returns the new one.

    Reading, changing and writing happen under one lock; when this returns, the result is on
    the disk.  Missing folders are created.  Raises as `load` does, StorageError where the
    disk refuses, and RegistryError for a result that could not be read back; the file is then
    as it was.
    """
    path = Path(path)
    with storage_errors(f"cannot write registry {path}"):
        # A link stays a link: what it points to is replaced.
        target = Path(os.path.realpath(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        with locked(target, "registry"):
            registry = change(load(path))
            replace_file(target, to_json(registry).encode(), alone=True)
    return registry


def save(path: Path | str, registry: Registry) -> None:
    """Write a registry over whatever registry the file holds; raises as `update` does."""
    update(path, lambda _: registry)


def put(path: Path | str, found: Sequence[FoundEntry]) -> tuple[str, ...]:
    """Add a search's entries, each combined with the entry that has its key (`combine.combined`).

    Returns one sentence per entry that is not the search's own choice.  Raises as `update` does.
    """
    kept: list[str] = []

    def add(registry: Registry) -> Registry:
        kept.clear()
        by_key = {e.key: e for e in registry.entries}
        for one in found:
            entry, why = combined(by_key.get(one.entry.key), one)
            by_key[entry.key] = entry
            if why is not None:
                kept.append(why)
        return Registry.of(list(by_key.values()))

    update(path, add)
    return tuple(kept)
