"""The content-addressed store of compiled kernels: what was compiled once is not again.

    <cache dir>/artifacts-v2/<ab>/<digest>.json          facts, or why the compiler refused
                                  <digest>-<sha>.cubin   the code that the facts name

The digest covers everything the compiler saw.  The cubin is written first, then the JSON,
each to a temporary file that is renamed: an entry is there completely or not at all, and any
number of processes may write and read at once.  What a power failure damages is written anew.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fa_tune.build.worker import Compilation
from fa_tune.core import codec
from fa_tune.core.errors import StorageError
from fa_tune.core.files import check_own, replace_file
from fa_tune.core.model import Outcome
from fa_tune.core.paths import default_cache_dir

_FOLDER = "artifacts-v2"  # the version of the layout and of the JSON's fields

Warn = Callable[[str], None]


def source_sha256(files: Mapping[str, str]) -> str:
    """One hash over names and texts, whatever their order."""
    return _sha256(part for name in sorted(files) for part in (name, files[name]))


def _sha256(parts: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "big"))  # so that no two lists of parts run together
        digest.update(data)
    return digest.hexdigest()


@dataclass(frozen=True)
class ArtifactKey:
    """All that decides what comes out of the compiler."""

    headers_sha256: str  # source_sha256 of every file the kernel may include
    entry_source: str  # the translation unit
    options: tuple[str, ...]  # complete, the architecture among them
    nvrtc: str  # version with patch level
    arch: str
    name_expression: str  # the template instantiations, a line each, config and traits in them

    @property
    def digest(self) -> str:
        """The entry's name in the store."""
        return _sha256(
            (
                self.headers_sha256,
                self.entry_source,
                str(len(self.options)),
                *self.options,
                self.nvrtc,
                self.arch,
                self.name_expression,
            )
        )


@dataclass(frozen=True)
class Stored:
    """An entry with the path of its cubin; None for a failed compilation."""

    entry: Compilation
    cubin: Path | None


class _Damaged(Exception):
    """An entry that is there and cannot be believed."""


class ArtifactStore:
    """Entries under one cache folder, default `default_cache_dir()`, which must be the user's own.

    `warn` is given one line for each damaged entry (which then counts as absent and is
    written anew) and one when the folder cannot be written: from then on new entries go to a
    temporary folder, which lives as long as this process, while old ones are still read.
    """

    def __init__(self, cache_dir: Path | None = None, *, warn: Warn | None = None) -> None:
        self._root = (cache_dir or default_cache_dir()).absolute() / _FOLDER
        self._spare: Path | None = None
        self._warn = warn or logging.getLogger(__name__).warning

    @property
    def path(self) -> Path:
        """Where new entries go."""
        return self._spare or self._root

    def get(self, key: ArtifactKey) -> Stored | None:
        """The entry of a key, or None.  Marks it as used now.  Raises StorageError for folders and
        files that other users may write."""
        for root in filter(None, (self._spare, self._root)):
            path = _entry_path(root, key.digest)
            check_own(root.parent, root, path.parent, path)
            try:
                stored = _read(path, key)
            except (FileNotFoundError, NotADirectoryError, PermissionError):
                continue  # where nothing can be read, `put` warns once that it cannot write
            except (OSError, _Damaged) as error:
                self._warn(f"ignoring the cached kernel {path}: {error}; it is compiled again")
                continue
            for file in filter(None, (path, stored.cubin)):
                _touch(file)
            return stored
        return None

    def put(self, key: ArtifactKey, entry: Compilation, cubin: bytes = b"") -> Stored:
        """Store an entry, replacing any other of the same key.

        Raises StorageError when neither the cache folder nor a temporary one can be written.
        """
        if self._spare is None:
            try:
                return _write(self._root, key, entry, cubin)
            except OSError as error:
                self._spare = self._make_spare(error)
        try:
            return _write(self._spare, key, entry, cubin)
        except OSError as error:
            raise StorageError(
                f"cannot store a compiled kernel in {self._spare}: {error}"
            ) from None

    def _make_spare(self, cause: OSError) -> Path:
        try:
            spare = Path(tempfile.mkdtemp(prefix="fa-tune-cache-"))
        except OSError as error:
            raise StorageError(
                f"neither the cache folder {self._root} ({_why(cause)}) nor a temporary one "
                f"({_why(error)}) can be written; name another with --cache-dir"
            ) from None
        atexit.register(shutil.rmtree, spare, ignore_errors=True)
        self._warn(
            f"the cache folder {self._root} cannot be written ({_why(cause)}); "
            f"compiled kernels go to {spare} for this run; name another with --cache-dir"
        )
        return spare

    def size(self) -> tuple[int, int]:
        """How many entries the cache folder holds now, and the bytes of all files."""
        entries = size_bytes = 0
        for path in self._root.glob("??/*"):
            with contextlib.suppress(FileNotFoundError):
                size_bytes += path.stat().st_size
                entries += path.suffix == ".json"
        return entries, size_bytes


def _entry_path(root: Path, digest: str) -> Path:
    return root / digest[:2] / f"{digest}.json"


@dataclass(frozen=True)
class _File:
    """The JSON of an entry."""

    key: ArtifactKey
    entry: Compilation
    cubin_sha256: str


def _read(path: Path, key: ArtifactKey) -> Stored:
    try:
        value = codec.parse(path.read_bytes())
    except ValueError:  # not JSON, or not even UTF-8
        raise _Damaged("it is not JSON") from None
    try:
        file = codec.load(_File, value)
    except ValueError as error:
        raise _Damaged(f"its fields are wrong ({error})") from None
    if file.key != key:
        raise _Damaged("it belongs to another key")
    entry = file.entry
    if (entry.outcome is Outcome.OK) != bool(entry.kernels):
        raise _Damaged(f"outcome {entry.outcome} does not go with its kernels")
    if entry.outcome is not Outcome.OK:
        return Stored(entry, None)
    cubin = _cubin_path(path, file.cubin_sha256)
    check_own(cubin)
    try:
        code = cubin.read_bytes()
    except FileNotFoundError:
        raise _Damaged("its cubin is missing") from None
    if hashlib.sha256(code).hexdigest() != file.cubin_sha256:
        raise _Damaged("its cubin is not the one that was stored")
    return Stored(entry, cubin)


def _write(root: Path, key: ArtifactKey, entry: Compilation, cubin: bytes) -> Stored:
    path = _entry_path(root, key.digest)
    path.parent.mkdir(parents=True, exist_ok=True)
    cubin_sha256 = hashlib.sha256(cubin).hexdigest() if cubin else ""
    value = codec.dump(_File(key, entry, cubin_sha256))
    cubin_path = _cubin_path(path, cubin_sha256) if cubin else None
    if cubin_path is not None:
        replace_file(cubin_path, cubin, synced=False)
    replace_file(path, json.dumps(value, indent=1).encode(), synced=False)
    return Stored(entry, cubin_path)


def _cubin_path(entry_path: Path, cubin_sha256: str) -> Path:
    # The hash in the name: writers whose code differs do not overwrite each other's.
    return entry_path.with_name(f"{entry_path.stem}-{cubin_sha256[:16]}.cubin")


def _touch(path: Path) -> None:
    with contextlib.suppress(OSError):  # another user's: its age is not ours to keep
        os.utime(path)


def _why(error: OSError) -> str:
    return error.strerror or str(error)
