"""Other people's kernels, measured beside ours and never chosen (docs/your-kernels.md).

Their subject is `user:` and where they are: `module:function`, `file.py:function`,
`file.cu:kernel`, or the name of an entry point of the group `fa_tune.runners`.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from fa_tune.core.errors import InvalidConfig, StorageError
from fa_tune.core.streams import stream_of
from fa_tune.libraries.base import CUPY, TORCH, find
from fa_tune.operations.base import Launch, Problem, Tensors

GROUP = "fa_tune.runners"
LAUNCHER = "launch"  # in the .py beside a .cu: (problem, function), called for every launch


@dataclass(frozen=True)
class UserRunner:
    """A user's kernel.  `files` are what it is made of, none of an entry point's; `name` is that of
    its function or kernel."""

    place: str
    files: tuple[Path, ...] = ()
    name: str = ""
    entry: EntryPoint | None = None

    @property
    def subject(self) -> str:
        """`user:` and its place."""
        return f"user:{self.place}"

    @property
    def identity(self) -> str:
        """A hash of its files, or the version of the package that offers it."""
        if self.entry is not None:
            package = self.entry.dist
            return f"{package.name} {package.version}" if package else self.entry.value
        found = hashlib.sha256(b"".join(file.read_bytes() for file in self.files))
        return f"sha256 {found.hexdigest()[:16]}"

    @property
    def versions(self) -> dict[str, str]:
        """What it ran with, itself included, as the process that called it knows it."""
        packages = (TORCH, CUPY) if self._is_cuda else (TORCH,)
        return {p.name: p.version for p in packages} | {self.place: self.identity}

    @property
    def _is_cuda(self) -> bool:
        return bool(self.files) and self.files[0].suffix == ".cu"

    def bind(self, problem: Problem) -> Launch:
        """A call that enqueues one launch.  Raises ImportError for what cannot be loaded,
        TypeError for what is no launch, and whatever the user's code raises: InvalidConfig where
        it has no call for the workload."""
        if self._is_cuda:
            return self._launch_of_kernel(problem)
        launch = self._function(problem)
        if not callable(launch):
            kind = type(launch).__name__
            raise TypeError(f"{self.place} gave {kind} for a problem, not a call that launches")
        return launch

    @property
    def _function(self) -> Callable[[Problem], Launch]:
        if self.entry is not None:
            found: Callable[[Problem], Launch] = self.entry.load()
            return found
        where = self.place.rpartition(":")[0]
        if where.endswith(".py"):
            return _attribute(_of_file(self.files[0].resolve()), self.name)
        _add_to_path(Path.cwd())
        return _attribute(importlib.import_module(where), self.name)

    def _launch_of_kernel(self, problem: Problem) -> Launch:
        import cupy
        import torch

        source, beside = self.files
        launcher = _attribute(_of_file(beside.resolve()), LAUNCHER)
        module = cupy.RawModule(
            code=source.read_text(encoding="utf-8"),
            options=("-std=c++20", f"-I{source.parent.resolve()}"),
        )
        function = module.get_function(self.name)

        def launch() -> Tensors | None:
            with stream_of(torch.cuda.current_stream().cuda_stream):
                found: Tensors | None = launcher(problem, function)
            return found

        return launch


def locate(place: str) -> UserRunner:
    """The runner that a user states; nothing is imported.  Raises InvalidConfig where there is
    none, StorageError for a file that does not exist."""
    where, colon, name = place.rpartition(":")
    if not colon:
        offered = {entry.name: entry for entry in entry_points(group=GROUP)}
        if place in offered:
            return UserRunner(place, entry=offered[place])
        known = f"; packages here offer {', '.join(sorted(offered))}" if offered else ""
        raise InvalidConfig(
            f"{place}: neither module:function, file.py:function nor file.cu:kernel{known}"
        )
    files = _files(place, where)
    text = files[0].read_text(encoding="utf-8", errors="replace")
    if not re.search(rf"\b{re.escape(name)}\b", text):
        raise InvalidConfig(f"{place}: there is no {name} in {files[0]}")
    return UserRunner(place, files, name)


def _files(place: str, where: str) -> tuple[Path, ...]:
    """The files of a place; raises StorageError for one that does not exist, InvalidConfig for a
    module."""
    path = Path(where)
    if path.suffix not in (".py", ".cu"):
        found = find(where, [str(Path.cwd()), *sys.path])
        if found is None or not found.origin:
            raise InvalidConfig(f"{place}: there is no module {where}")
        return (Path(found.origin),)
    files = (path, path.with_suffix(".py")) if path.suffix == ".cu" else (path,)
    for file in files:
        if not file.is_file():
            why = f", with {LAUNCHER}(problem, function) for the kernel" if file != path else ""
            raise StorageError(f"{place}: there is no file {file}{why}")
    return files


def _attribute(module: ModuleType, name: str) -> Callable[..., Any]:
    found: Callable[..., Any] | None = getattr(module, name, None)
    if not callable(found):
        raise ImportError(f"there is no function {name} in {module.__file__}")
    return found


@cache
def _of_file(file: Path) -> ModuleType:
    """A file run as a module, which may import those beside it."""
    _add_to_path(file.parent)
    spec = importlib.util.spec_from_file_location(f"user_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _add_to_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
