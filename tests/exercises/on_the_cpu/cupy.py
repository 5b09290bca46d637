"""In CuPy's place, by PYTHONPATH: a `.cu` without shared memory is compiled by CXX and run thread
by thread."""

import ctypes
import itertools
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HALF = """
using __half = _Float16;
inline float __half2float(__half value) { return value; }
inline __half __float2half(float value) { return value; }
"""
PRELUDE = """
#include <cmath>
struct Index { int x, y, z; };
extern "C" { Index blockIdx, blockDim, threadIdx; }
#define __global__
"""


class RawModule:
    def __init__(self, *, code: str, options: Sequence[str]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "cuda_fp16.h").write_text(HALF, encoding="utf-8")
            (Path(folder) / "user.cpp").write_text(PRELUDE + code, encoding="utf-8")
            command = [os.environ["CXX"], *options, "-I.", "-O1", "-fPIC", "-shared", "user.cpp"]
            subprocess.run([*command, "-o", "user.so"], cwd=folder, check=True)
            self._library = ctypes.CDLL(f"{folder}/user.so")

    def get_function(self, name: str) -> Callable[..., None]:
        function = self._library[name]
        block_at, size, thread_at = (
            (ctypes.c_int * 3).in_dll(self._library, index)
            for index in ("blockIdx", "blockDim", "threadIdx")
        )

        def launch(grid: tuple[int, ...], block: tuple[int, ...], arguments: Sequence[Any]) -> None:
            given = [_argument(value) for value in arguments]
            size[:] = block
            for blocks in itertools.product(*map(range, grid)):
                for threads in itertools.product(*map(range, block)):
                    block_at[:], thread_at[:] = blocks, threads
                    function(*given)

        return launch


def _argument(value: Any) -> Any:
    if isinstance(value, int):
        return ctypes.c_void_p(value)
    kind = {"f": ctypes.c_float, "i": ctypes.c_int32}[value.dtype.kind]
    return kind(value.item())


class _NoError(Exception):
    """None is raised here."""


cuda = SimpleNamespace(
    Device=lambda index: SimpleNamespace(use=lambda: None),
    ExternalStream=lambda handle: nullcontext(),
    Stream=object,
    driver=SimpleNamespace(CUDADriverError=_NoError),
    runtime=SimpleNamespace(CUDARuntimeError=_NoError),
)
