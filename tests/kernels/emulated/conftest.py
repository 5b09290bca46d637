"""Without a C++20 compiler nothing here can run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.kernels.emulated.emulation import compiler

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    if compiler() is not None:
        return
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="no C++ compiler that knows C++20 and fp16"))
