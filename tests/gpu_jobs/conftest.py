"""The jobs import CuPy; without a GPU it has nothing to do here, and may be missing."""

import importlib.util
import sys
from types import ModuleType, SimpleNamespace


class FakeCudaError(RuntimeError):
    """What CuPy raises for a failed launch."""


def _stand_in() -> ModuleType:
    cupy = ModuleType("cupy")
    cupy.cuda = SimpleNamespace(  # type: ignore[attr-defined]
        driver=SimpleNamespace(CUDADriverError=FakeCudaError),
        runtime=SimpleNamespace(CUDARuntimeError=FakeCudaError),
    )
    return cupy


if importlib.util.find_spec("cupy") is None:
    sys.modules.setdefault("cupy", _stand_in())
