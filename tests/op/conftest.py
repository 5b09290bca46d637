"""The stub of the CUDA driver, a folder for what is compiled, and the operators on the CPU.

Without torch there are no tests here: there are no operators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.csrc.conftest import core, native_cache, run_with_stub, stub

__all__ = ["core", "native_cache", "run_with_stub", "stub"]


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path: Any, parent: Any) -> None:
    pytest.importorskip("torch", reason="torch is not installed: no operators")


@pytest.fixture
def twins_on_the_cpu() -> Iterator[None]:
    from tests.op import twins  # needs torch

    with twins.registered():
        yield
