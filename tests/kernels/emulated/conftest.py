"""Without a C++20 compiler nothing here can run.  What it makes is kept for all tests of a run.

A run of more than this folder takes some of its tests where all have passed with the present
sources (tests/tools/proven.py).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.kernels.emulated.emulation import compiler
from tests.tools import proven

HERE = Path(__file__).parent
FEW = 6  # one of so many


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    own = [item for item in items if HERE in item.path.parents]
    if compiler() is None:
        for item in own:
            item.add_marker(pytest.mark.skip(reason="no C++ compiler that knows C++20 and fp16"))
    elif not _are_asked_for(config.args) and _have_passed():
        left = {item for number, item in enumerate(own) if number % FEW}
        config.hook.pytest_deselected(items=[*left])
        items[:] = [item for item in items if item not in left]


def _are_asked_for(arguments: Sequence[str]) -> bool:
    """Whether the command line names this folder or a part of it."""
    named = (Path(argument.partition("::")[0]).resolve() for argument in arguments)
    return any(HERE in (path, *path.parents) for path in named)


def _have_passed() -> bool:
    return proven.is_noted(proven.EMULATED_KEY, proven.emulated_identity())


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of compiled kernels of this run, one for all workers."""
    own = tmp_path_factory.getbasetemp()
    return (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "emulated"
