"""The stub of the driver in ctypes, for processes that run with it."""

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MAX_PARAMS = 2048
WORDS3 = ctypes.c_uint32 * 3


class _Launch(ctypes.Structure):
    _fields_ = (
        ("symbol", ctypes.c_char * 128),
        ("grid", WORDS3),
        ("block", WORDS3),
        ("cluster", WORDS3),
        ("shared_bytes", ctypes.c_uint32),
        ("device", ctypes.c_int32),
        ("captured", ctypes.c_int32),
        ("dependent", ctypes.c_int32),
        ("stream", ctypes.c_uint64),
        ("params_bytes", ctypes.c_uint32),
        ("params", ctypes.c_ubyte * MAX_PARAMS),
    )


@dataclass(frozen=True)
class Launched:
    """A launch as the driver saw it."""

    symbol: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    cluster: tuple[int, ...]
    shared_bytes: int
    dependent: bool
    params: bytes


class Stub:
    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self.library.stub_launch_count.restype = ctypes.c_size_t
        for name in ("stub_kernel", "stub_stream"):
            getattr(self.library, name).restype = ctypes.c_void_p

    def set_device(self, name: str, capability: int, multiprocessors: int, l2_bytes: int) -> None:
        """Before the core has looked at the device."""
        self.library.stub_set_device(name.encode(), capability, multiprocessors, l2_bytes)

    def kernel(self, symbol: str) -> int:
        """The kernel of that name that was loaded last."""
        return int(self.library.stub_kernel(symbol.encode()))

    def stream(self) -> int:
        """A new stream."""
        return int(self.library.stub_stream(0))

    def launched(self) -> list[Launched]:
        """What was launched since the last call."""
        found = []
        for i in range(self.library.stub_launch_count()):
            one = _Launch()
            assert self.library.stub_get_launch(ctypes.c_size_t(i), ctypes.byref(one))
            found.append(
                Launched(
                    one.symbol.decode(),
                    tuple(one.grid),
                    tuple(one.block),
                    tuple(one.cluster),
                    one.shared_bytes,
                    bool(one.dependent),
                    bytes(one.params)[: one.params_bytes],
                )
            )
        self.library.stub_reset()
        return found


def image(kernels: Iterable[tuple[str, Sequence[int]]]) -> bytes:
    """A binary with kernels: the symbol of each and the sizes of its parameters."""
    lines = (f"{symbol} {' '.join(map(str, sizes))}\n" for symbol, sizes in kernels)
    return f"{''.join(lines)}\0".encode()
