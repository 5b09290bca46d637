"""Something to be done as soon as a module is imported, whoever imports it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class AfterImport:
    """A finder that finds as the others do; `actions` by the modules' names, each done once.  An
    action that raises makes the import fail."""

    def __init__(self, actions: dict[str, Callable[[ModuleType], None]]) -> None:
        self._actions = actions
        self._asked: set[str] = set()

    def install(self) -> None:
        """From now on, and at once for modules that are there."""
        for name in [*self._actions]:
            if name in sys.modules:
                self._actions.pop(name)(sys.modules[name])
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """No longer."""
        sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that another finder has, whose loader does the action at its end."""
        if name not in self._actions or name in self._asked:
            return None
        self._asked.add(name)  # another one of this kind asks us in turn
        try:
            for finder in sys.meta_path:
                spec = None if finder is self else finder.find_spec(name, path, target)
                if spec is not None:
                    if spec.loader is not None:
                        self._extend(spec.loader, self._actions[name])
                    return spec
            return None
        finally:
            self._asked.discard(name)

    def _extend(self, loader: Any, action: Callable[[ModuleType], None]) -> None:
        load = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            vars(loader).pop("exec_module", None)  # the loader is as it was
            load(module)
            if self._actions.pop(module.__name__, None) is not None:
                action(module)

        loader.exec_module = exec_module
