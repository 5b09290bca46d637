"""Launches that are frozen: what a call of a variant on tensors launches, for ever.

`data/launches.json.xz` was made by the launcher in Python that was there before the C++ core
launched all: random calls of every family, with the launches of each, none where it is refused.
"""

import hashlib
import json
import lzma
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fa_tune.build.native import abi
from tests.project_files import ROOT

FILE = ROOT / "tests" / "csrc" / "data" / "launches.json.xz"
MULTIPROCESSORS, L2_BYTES = 114, 50 << 20
WORKSPACE = 0x7E0000000100
COUNTERS = 0x7F0000000100
_MAP = struct.Struct("<QII5Q4QI")


@dataclass(frozen=True)
class FrozenLaunch:
    """One launch; `digest`: of the tensor maps and the bytes of the parameters."""

    grid: tuple[int, ...]
    block: tuple[int, ...]
    cluster: tuple[int, ...]
    shared_bytes: int
    dependent: bool
    params_bytes: int
    digest: str


@dataclass(frozen=True)
class FrozenCall:
    """A call of `variant`, compiled with `traits` for `arch`, on a workload given by its key.

    `tensors`: by name, address and strides of batch, sequence and head in elements, as the kernel
    counts them.  `added`, `page_size`: of a cache.  `diagonal`, `scale` replace the workload's own.
    Workspace and counters, where they are needed, are at WORKSPACE and COUNTERS.
    """

    variant: str
    traits: str
    arch: str
    workload: str
    tensors: dict[str, tuple[int, int, int, int]]
    added: int
    page_size: int
    diagonal: int | None
    scale: float | None
    workspace_bytes: int
    launches: tuple[FrozenLaunch, ...]


def digest(maps: Sequence[abi.TensorMap], params: bytes) -> str:
    """What `FrozenLaunch.digest` holds."""
    return hashlib.sha256(b"".join(map(_packed, maps)) + params).hexdigest()[:12]


def frozen_calls() -> Iterator[FrozenCall]:
    """All of them."""
    variants, rows = json.loads(lzma.decompress(FILE.read_bytes()))
    for number, workload, tensors, *rest, launches in rows:
        kind: Any = variants[number]
        found = tuple(FrozenLaunch(*map(_as_tuple, launch)) for launch in launches)
        named = {name: tuple(numbers) for name, *numbers in tensors}
        yield FrozenCall(*kind, workload, named, *rest, found)


def _packed(m: abi.TensorMap) -> bytes:
    return _MAP.pack(m.address, m.data_type, m.rank, *m.dimensions, *m.strides, m.box_rows)


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
