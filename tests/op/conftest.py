"""The stub of the CUDA driver, and a folder for what is compiled."""

from tests.csrc.conftest import core, native_cache, run_with_stub, stub

__all__ = ["core", "native_cache", "run_with_stub", "stub"]
