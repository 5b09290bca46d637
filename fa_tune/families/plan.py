"""What C++ needs to know of a compiled kernel to launch it, declared once.

`csrc/core` computes grids and kernel parameters from a plan and a problem.  Its header
`fa_tune_types.h` is generated from the classes here and those of `build.native.abi`, field by
field; every integer has 32 bits there.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from fa_tune import operations
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import Workload
from fa_tune.families.fields import Choice, d_v_of, is_kv_e4m3
from fa_tune.operations.traits import Traits

_ARCH = re.compile(r"(?P<kind>sm|compute)_(?P<number>\d+)(?P<specific>a?)")


class Operation(IntEnum):
    """What a kernel computes."""

    FORWARD = 0
    BACKWARD = 1


class Portability(IntEnum):
    """Which devices run what was compiled for some compute capability.

    MINOR: a cubin, the same major version and no lower minor one.
    EXACT: architecture-specific code (sm_90a), that very one.
    LATER: PTX, that one and every later one.
    """

    MINOR = 0
    EXACT = 1
    LATER = 2


class TensorRole(IntEnum):
    """What a tensor is to a call: its place in fa_tune_tensors."""

    Q = 0
    K = 1
    V = 2
    O = 3  # noqa: E741 - its name in the literature
    LSE = 4
    SINK = 5
    ALIBI_SLOPES = 6
    CU_SEQLENS_Q = 7
    CU_SEQLENS_KV = 8
    USED_Q = 9
    USED_KV = 10
    K_SCALE = 11
    V_SCALE = 12
    CACHE_SEQLENS = 13
    PAGE_TABLE = 14
    NEW_K = 15
    NEW_V = 16
    DO = 17
    DQ = 18
    DK = 19
    DV = 20
    DLSE = 21


class Grid(IntEnum):
    """How CTAs are numbered.

    BLOCKS_HEADS_BATCH: x, blocks of query rows; y, heads; z, batch.
    TILES: x, a CTA, or a cluster, for each tile, which is a block of query rows of one head.
    PERSISTENT: x, as many as are resident at a time, at most one for each tile.
    SHARES: x, as many as are resident at a time; they share the blocks of keys of all tiles
    evenly, or have tiles as TileOrder says.  A tile is rows of all query heads that share one of K
    and V.  With clusters there is one for each tile.
    TILES_ROWS: x, these tiles; y, the rows of one.
    KEY_TILES: x, a CTA, or a cluster, for each tile of keys of one head of K and V.
    PERSISTENT_KEYS: x, as many as are resident at a time, at most one for each of these.
    """

    BLOCKS_HEADS_BATCH = 0
    TILES = 1
    PERSISTENT = 2
    SHARES = 3
    TILES_ROWS = 4
    KEY_TILES = 5
    PERSISTENT_KEYS = 6


class TileOrder(Choice):
    """Who has which tiles of a grid of shares.

    SHARES: all blocks of all tiles stand in a line, of which CTAs have equal parts.
    WHOLE_ROUNDS: CTAs have a whole tile each, and again: as many as need no more rounds.
    CTA_PER_TILE: a CTA for each tile, however many these are.
    """

    SHARES = 0
    WHOLE_ROUNDS = 1
    CTA_PER_TILE = 2


@dataclass(frozen=True)
class GridShape:
    """What the grid of a launch tells of its workload; `query_blocks` per head."""

    query_blocks: int
    heads: int
    batch: int


def planned(doc: str, default: Any = dataclasses.MISSING) -> Any:
    """A field with its line in the C header."""
    return dataclasses.field(default=default, metadata={"doc": doc})


@dataclass(frozen=True)
class LaunchPlan:
    """One launch of a call."""

    params: str = planned("parameters of the kernel: the name of a file in csrc/core/params")
    grid: Grid = planned("how CTAs are numbered: fa_tune_grid")
    tile_rows: int = planned("query rows, or keys, of a CTA's tile")
    ctas_per_sm: int = planned("resident CTAs of a multiprocessor that a persistent grid counts on")
    threads: int = planned("threads of a CTA")
    dynamic_smem_bytes: int = planned("dynamic shared memory of a CTA")
    cluster_x: int = planned("CTAs of a cluster along x, as it was compiled; 1 is none", 1)
    cluster_y: int = planned("CTAs of a cluster along y", 1)
    cluster_z: int = planned("CTAs of a cluster along z", 1)
    q_box_rows: int = planned(
        "rows of a box of Q, of O and their gradients; 0: the kernel takes no tensor maps, else "
        "those that its parameters name before them",
        0,
    )
    kv_box_rows: int = planned("rows of a box of K, of V and their gradients", 0)
    counter_bytes: int = planned(
        "global memory of counters, zero before and after a launch; 0: none", 0
    )
    share_keys: int = planned("keys of a block, where CTAs share blocks of keys; 0: they do not", 0)
    min_blocks: int = planned("of them that a CTA takes at least", 0)
    aligned: int = planned("1: tiles begin where CTAs do, or at equal parts of them", 0)
    order: TileOrder = planned("who has which of these tiles: fa_tune_tile_order", TileOrder.SHARES)
    dependent: int = planned(
        "1: the launch may begin before the one in front of it is done; the kernel waits", 0
    )
    sum_rows: int = planned(
        "query rows of a tile of fp32 sums of dQ in the workspace of a backward pass; 0: none", 0
    )


@dataclass(frozen=True)
class Plan:
    """A compiled variant: which problems it computes, on which devices."""

    operation: Operation = planned("what it computes: fa_tune_operation")
    launches: int = planned("kernels of a call, launched one after another")
    dtype: int = planned("element type of Q, K, V and O: fa_tune_dtype")
    d_head: int = planned("head dimension of Q and K")
    d_v: int = planned("head dimension of V and O")
    block_q: int = planned("numbers of queries that are no multiples of it need `ragged`")
    block_kv: int = planned("numbers of keys that are no multiples of it need `ragged`")
    causal: int = planned(
        "1: compiled with a causal mask or a right side of a window, which it always applies"
    )
    ragged: int = planned("1: compiled for lengths that are no multiples of the blocks")
    lse: int = planned("1: compiled to write the log-sum-exp, always")
    window: int = planned("1: compiled with a left side of a window, which it always applies")
    sink: int = planned("1: compiled with a sink for each head")
    softcap: int = planned("1: compiled with a soft cap, which it always applies")
    alibi: int = planned("1: compiled with ALiBi slopes, which it always applies")
    hook: int = planned("1: compiled with a function for scores of one's own")
    packed: int = planned("1: compiled for packed batches, and for no others")
    kv_e4m3: int = planned("1: compiled for K and V in e4m3, and for no other")
    exact: int = planned("1: the largest weight of a row is exactly 1")
    decode_shape: int = planned(
        "1: made for few rows that share a head of K and V: the default of no other problem"
    )
    compute_capability: int = planned("compiled for: ten times the major version and the minor")
    portability: Portability = planned("which devices that serves: fa_tune_portability")

    def has_traits_of(self, workload: Workload) -> bool:
        """Whether a workload of its type and d_head asks for the traits it was compiled with."""
        traits = operations.get(workload.op).traits(workload, (self.block_q, self.block_kv))
        names = (f.name for f in dataclasses.fields(traits))
        return all(bool(getattr(self, name)) == bool(getattr(traits, name)) for name in names)


@dataclass(frozen=True)
class CallPlan:
    """The plan of a variant and one of each launch, in their order."""

    plan: Plan
    launches: tuple[LaunchPlan, ...]

    @classmethod
    def of(
        cls,
        operation: str,
        config: Any,
        traits: str,
        arch: str,
        launches: tuple[LaunchPlan, ...],
        **other: int,
    ) -> CallPlan:
        """The plan of a config with `dtype`, `d_head`, `B_r` and `B_c`, compiled with these traits
        for `arch` (`sm_90a`, `compute_80`), with `other` values in place of the usual ones.  Raises
        InvalidConfig."""
        wanted = Traits.parse(traits)
        capability, portability = compiled_for(arch)
        values: dict[str, Any] = {
            "operation": Operation[operation.upper()],
            "launches": len(launches),
            "dtype": int(config.dtype),
            "d_head": config.d_head,
            "d_v": d_v_of(config),
            "block_q": config.B_r,
            "block_kv": config.B_c,
            **{f.name: int(bool(getattr(wanted, f.name))) for f in dataclasses.fields(wanted)},
            "kv_e4m3": int(is_kv_e4m3(config)),
            "exact": int(config.exact),
            "decode_shape": 0,
            "compute_capability": capability,
            "portability": portability,
        }
        return cls(Plan(**values | other), launches)


def compiled_for(arch: str) -> tuple[int, Portability]:
    """The compute capability, as a plan has it, and the devices of code for `sm_80`, `sm_90a` or
    `compute_80`; raises InvalidConfig."""
    found = _ARCH.fullmatch(arch)
    if found is None:
        raise InvalidConfig(f"not an architecture: {arch!r}; write it like sm_90a or compute_80")
    if found["specific"]:
        portability = Portability.EXACT
    else:
        portability = Portability.LATER if found["kind"] == "compute" else Portability.MINOR
    return int(found["number"]), portability


ENUMS: tuple[type[IntEnum], ...] = (Operation, Portability, TensorRole, Grid, TileOrder)
