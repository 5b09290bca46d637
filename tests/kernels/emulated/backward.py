"""The backward kernels on the host: what is wrong with a launch.  sm90 kernels are told here what a
launch passes to them.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from fa_tune.build.native import abi
from fa_tune.core.workload import DType
from tests.kernels.emulated.backward_kernels import Kernel
from tests.kernels.emulated.backward_problems import (
    BackwardProblem,
    Gradients,
    forward_results,
    gradients,
)
from tests.kernels.emulated.backward_sm80 import Sm80Kernel
from tests.kernels.emulated.emulation import (
    CLUSTERS,
    EmulationFailed,
    Guarded,
    Schedule,
    Shape,
    emulate,
    map_bytes,
    schedules,
)
from tests.kernels.emulated.judging import LONGEST_TEXT, Verdict, in_own_process
from tests.kernels.emulated.packed_problems import PackedProblem
from tests.kernels.emulated.problems import (
    Bits,
    Room,
    to_bits,
    to_float,
)

PADDED = 128  # queries: what is per query in the workspace comes in as many
LIMIT_S = 600.0
# The root mean square error by that of sums of magnitudes: rounding of P, dS, O and the result.
LIMIT = {DType.FP16: 2.0**-11, DType.BF16: 2.0**-8}
# Of each kernel: the tensors of its maps, and how many rows their boxes have.
MAPS: Mapping[str, Callable[[Kernel], dict[str, int]]] = {
    "prepare": lambda _: {},
    "finish": lambda _: {},
    **dict.fromkeys(
        ("kernel", "wide"),
        lambda k: {"q": k.B_r, "k": 64, "v": 64, "d_o": k.B_r, "dk": 64, "dv": 64},
    ),
    "dq": lambda k: {"q": 64, "k": k.dq_keys, "v": k.dq_keys, "d_o": 64, "dq": 64},
}
WITHOUT_MAPS = ("q", "k", "v", "dk", "dv")  # of kernels that take no maps
THREADS = {"prepare": 1024, "finish": 256, "kernel": 384, "wide": 384, "dq": 384}


class _Strides(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_longlong) for name in ("batch", "seq", "head"))


class _Score(ctypes.Structure):
    """kernels/common/score_params.cuh."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("sink", "alibi_slopes")),
        *((name, ctypes.c_int) for name in ("alibi_batch_stride", "first_diagonal")),
        *(("alibi_diagonal", ctypes.c_int), ("score_scale", ctypes.c_float)),
    )


class _Packed(ctypes.Structure):
    """kernels/common/packed_batch.cuh."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("batch", "unused")),
        *(
            (name, ctypes.c_void_p)
            for name in ("cu_seqlens_q", "cu_seqlens_kv", "used_q", "used_kv", "members")
        ),
    )


class Params(ctypes.Structure):
    """kernels/common/backward/params.cuh."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("o", "d_o", "dq")),
        *((f"{name}_strides", _Strides) for name in ("o", "d_o", "dq")),
        *((name, ctypes.c_void_p) for name in ("lse", "grad_lse", "lse2")),
        *((name, ctypes.c_void_p) for name in ("delta", "dq_sum", "counters")),
        *(
            (name, ctypes.c_int)
            for name in (
                *("heads", "heads_per_kv", "seq_len_q", "seq_len_kv", "padded_q", "batch"),
                *("diagonal", "l2_head_group"),
            )
        ),
        ("softmax_scale", ctypes.c_float),
        ("score", _Score),
        ("packed", _Packed),
        *((name, ctypes.c_void_p) for name in WITHOUT_MAPS),
        *((f"{name}_strides", _Strides) for name in WITHOUT_MAPS),
    )


# --- launching ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """What a call wrote."""

    rooms: Mapping[str, Room]

    def bits(self, *names: str) -> bytes:
        """All of some outputs, with what surrounds them."""
        return b"".join(self.rooms[name].whole.tobytes() for name in names)


def launch(
    kernel: Kernel | Sm80Kernel,
    library: Path,
    problem: BackwardProblem,
    schedule: Schedule,
    *,
    results: tuple[np.ndarray, np.ndarray] | None = None,
) -> tuple[Result, Gradients]:
    """A call's launches, one after another, on exact O and log-sum-exp or on those given.  Raises
    EmulationFailed."""
    w, forward = problem.workload, problem.forward
    batch, total_q, total_kv = w.rows
    exact, lse = results or forward_results(problem)
    o = Room.of(problem.d_o.shape, forward.out_layout).inside
    o[...] = to_bits(exact, w.dtype)
    rooms = {
        "dq": Room.of(forward.q.shape, forward.out_layout),
        "dk": Room.of((batch, *forward.k.shape[1:]), forward.out_layout),
        "dv": Room.of((batch, *forward.v.shape[1:]), forward.out_layout),
    }
    inputs = {"q": forward.q, "k": forward.k, "v": forward.v, "d_o": problem.d_o, "o": o}
    tensors = inputs | {name: room.inside for name, room in rooms.items()}
    packed = forward.tensors() if isinstance(forward, PackedProblem) else {}
    sequences = w.batch if packed else 1
    padded = (total_q + sequences * (PADDED - 1)) // PADDED * PADDED
    rows = batch * w.heads * padded
    counters = Guarded.of(8, 0)
    workspace = {name: Guarded.of(4 * rows, 0xFF) for name in ("lse2", "delta")}
    columns = -(-w.d_head // 32) * 32
    workspace["dq_sum"] = Guarded.of(0 if kernel.two_pass else 4 * rows * columns, 0xFF)
    lse32, slopes = lse.astype(np.float32), np.ascontiguousarray(forward.slopes)
    params = Params(
        *(tensors[name].ctypes.data for name in ("o", "d_o", "dq")),
        *(_strides(tensors[name]) for name in ("o", "d_o", "dq")),
        *(lse32.ctypes.data, problem.d_lse.ctypes.data),
        *(workspace[name].inside.ctypes.data for name in ("lse2", "delta", "dq_sum")),
        counters.inside.ctypes.data,
        *(w.heads, w.heads // w.kv_heads, total_q, total_kv, padded, batch),
        *(problem.last_diagonal, problem.l2_head_group),
        1.0 if w.score_hook is not None else w.scale if w.softcap is None else 2 * w.softcap,
        _Score(
            *(None, slopes.ctypes.data, slopes.strides[0] // 4, problem.first_diagonal),
            0 if packed else w.diagonal,
            w.scale if w.softcap is None else -2 * w.scale / w.softcap / math.log(2),
        ),
        _Packed(
            *(sequences if packed else 0, 0),
            *(
                packed[name].ctypes.data if name in packed else None
                for name in ("cu_seqlens_q", "cu_seqlens_kv", "used_q", "used_kv")
            ),
        ),
        *(tensors[name].ctypes.data for name in WITHOUT_MAPS),
        *(_strides(tensors[name]) for name in WITHOUT_MAPS),
    )
    before = {name: t.copy() for name, t in inputs.items()}
    written = [room.whole for room in rooms.values()]
    written += [guarded.whole for guarded in (*workspace.values(), counters)]
    for number, name in enumerate(kernel.launches):
        if isinstance(kernel, Sm80Kernel):
            shape, maps = kernel.shape(name, w), []
        else:
            shape, maps = _step(kernel, name, library, problem, tensors)
        hidden = written if number > 0 and kernel.is_dependent else []
        emulate(library, number, shape, [*maps, bytes(params)], schedule, hidden)
    if counters.inside.any():
        raise EmulationFailed("the counters are not as they were")
    if not all(g.is_clean_outside() for g in (*workspace.values(), counters)):
        raise EmulationFailed("it wrote beside the workspace or the counters")
    if any((t != before[name]).any() for name, t in inputs.items()):
        raise EmulationFailed("it wrote to its inputs")
    return Result(rooms), gradients(problem, exact, lse)


def _step(
    kernel: Kernel, name: str, library: Path, problem: BackwardProblem, tensors: Mapping[str, Bits]
) -> tuple[Shape, list[bytes]]:
    w, packed = problem.workload, isinstance(problem.forward, PackedProblem)
    batch, *lengths = w.rows
    sequences = w.batch if packed else 1
    sizes = PADDED, kernel.B_c
    q_blocks, kv_blocks = (
        (n + sequences * (size - 1)) // size for n, size in zip(lengths, sizes, strict=True)
    )
    tiles = {
        **dict.fromkeys(("kernel", "wide"), kv_blocks * w.kv_heads),
        **dict.fromkeys(("prepare", "finish", "dq"), q_blocks * w.heads),
    }[name] * batch
    resident = name in ("kernel", "wide", "dq")
    clusters = {"kernel": kernel.cluster, "wide": kernel.cluster, "dq": kernel.dq_cluster}
    cluster = clusters.get(name, 1)
    ctas = min(tiles, problem.ctas) if kernel.dynamic and resident else tiles * cluster
    shared = _shared_bytes(library, name) if resident else 0
    map_of = _packed_map if packed else _map
    maps = [map_bytes(map_of(tensors[t], box)) for t, box in MAPS[name](kernel).items()]
    return Shape((ctas, 1, 1), (THREADS[name], 1, 1), shared, CLUSTERS, cluster), maps


def _packed_map(tensor: Bits, box_rows: int) -> abi.TensorMap:
    """As csrc/core/tensor_maps.cpp makes it."""
    _, rows, heads, columns = tensor.shape
    row, head = tensor.strides[1:3]
    far = 2**30
    made = abi.TensorMap(address=tensor.ctypes.data, rank=5, box_rows=box_rows)
    made.dimensions[:5] = (columns, far, heads, far + 1, rows + 1)
    made.strides[:4] = (row, head, 2**34 - row, row)
    return made


def _strides(tensor: Bits) -> _Strides:
    return _Strides(*(stride // 2 for stride in tensor.strides[:3]))


def _map(tensor: Bits, box_rows: int) -> abi.TensorMap:
    batch, rows, heads, columns = tensor.shape
    strides = (tensor.strides[1], tensor.strides[2], tensor.strides[0])
    made = abi.TensorMap(address=tensor.ctypes.data, rank=4, box_rows=box_rows)
    made.dimensions[:4] = (columns, rows, heads, batch)
    made.strides[:3] = strides
    return made


def _shared_bytes(library: Path, kernel: str) -> int:
    return int(getattr(ctypes.CDLL(str(library)), f"shared_bytes_{kernel}")())


# --- judging --------------------------------------------------------------------------------


def faults(problem: BackwardProblem, result: Result, right: Gradients) -> list[str]:
    """What is wrong with a call's gradients, in words."""
    dtype = problem.workload.dtype
    said = []
    for name, room in result.rooms.items():
        given, exact = to_float(room.inside, dtype), right.right[name]
        if not room.is_clean_outside():
            said.append(f"it wrote beside {name}")
        unused = np.isnan(exact)
        if not np.isnan(given[unused]).all():
            said.append(f"it wrote to {name} of no sequence")
        given, exact = np.where(unused, 0.0, given), np.where(unused, 0.0, exact)
        if given[right.magnitude[name] == 0].any():
            said.append(f"{name} of what sees nothing is not 0")
        error = share(given - exact, right.magnitude[name])
        if not error <= LIMIT[dtype]:
            said.append(f"{name}: error {error:.3g} exceeds {LIMIT[dtype]:.3g}")
    return said


def share(error: np.ndarray, magnitude: np.ndarray) -> float:
    """Roots of mean squares, one over the other."""
    if not error.any():
        return 0.0
    return float(np.sqrt(np.square(error).mean() / np.square(magnitude).mean()))


def judge(
    kernel: Kernel | Sm80Kernel,
    library: Path,
    problems: Callable[[int], BackwardProblem],
    *,
    count: int,
    repeats: int,
    seed: int = 0,
    lacking: int = 0,
) -> Verdict:
    """A kernel on so many problems, by number, in `1 + repeats` calls each, in a process of its
    own.  dQ of one pass may be of other bits every time."""
    work = partial(_judge, kernel, library, problems, count, repeats, seed, lacking)
    return in_own_process(work, lambda fault: Verdict(0, (fault,)), LIMIT_S)


def _judge(
    kernel: Kernel | Sm80Kernel,
    library: Path,
    problems: Callable[[int], BackwardProblem],
    count: int,
    repeats: int,
    seed: int,
    lacking: int,
) -> Verdict:
    ctypes.CDLL(str(library)).set_lacking(lacking)
    same = ("dq", "dk", "dv") if kernel.two_pass else ("dk", "dv")
    chosen: Iterator[Schedule] = schedules(seed)
    launches = 0
    for number in range(count):
        problem = problems(number)
        first = None
        for schedule in itertools.islice(chosen, 1 + repeats):
            launches += 1
            try:
                result, right = launch(kernel, library, problem, schedule)
            except EmulationFailed as failed:
                wrong = [str(failed)[:LONGEST_TEXT]]
            else:
                wrong = faults(problem, result, right)
                if first is None:
                    first = result.bits(*same)
                elif first != result.bits(*same):
                    wrong.append("other bits than the first time")
            if wrong:
                where = f"{number}: {problem.workload.key}, {schedule}"
                return Verdict(launches, tuple(f"{where}: {what}" for what in wrong))
    return Verdict(launches, ())


# --- at random ------------------------------------------------------------------------------

MASKS = ("", "causal", "ragged", "causal+ragged", "window+ragged", "causal+window+ragged")
HEADS = (
    *((d, 0) for d in (32, 40, 56, 64, 72, 80, 96, 104, 120, 128, 160, 192, 232, 256)),
    *((64, 0), (96, 0), (128, 0), (192, 128), (256, 0)),  # more often
)
PACKED_MASKS = ("", "causal+", "window+", "causal+window+")


def draw_kernel(seed: str) -> Kernel:
    """A kernel that can run."""
    dice = random.Random(seed)
    two_pass, dynamic = dice.random() < 0.4, dice.random() < 0.5
    d_head, d_head_v = dice.choice(HEADS)
    if d_head > 128:
        two_pass, dynamic = True, False
    keys = (64, 80, 96, 112, 128) if d_head <= 128 else (64, 80) if d_head <= 192 else (48,)
    same_step = not two_pass and dice.random() < 0.5
    sizes = (1,) if dynamic else (1, 2, 3, 4, 8)
    B_c = dice.choice((64, 128)) if d_head > 128 else 128
    return Kernel(
        *(dice.choice(list(DType)), d_head, dice.choice((2, 3))),
        turns=not same_step and dice.random() < 0.7,
        two_pass=two_pass,
        dynamic=dynamic,
        dq_keys=dice.choice(keys[: 3 if d_head > 64 and dynamic else 5]),
        d_head_v=d_head_v,
        same_step=same_step,
        cluster=1 if d_head > 128 and B_c == 128 else dice.choice(sizes),
        dq_cluster=dice.choice(sizes) if two_pass else 1,
        B_c=B_c,
        traits=_draw_traits(dice),
    )


def _draw_traits(dice: random.Random) -> str:
    packed = dice.random() < 0.4
    masks = f"{dice.choice(PACKED_MASKS)}ragged+packed" if packed else dice.choice(MASKS)
    changes = dice.choice(("", "", "softcap", "alibi", "softcap+alibi"))
    return "+".join(filter(None, (masks, changes, dice.choice(("", "", "lse")))))
