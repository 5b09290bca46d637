"""The sm90 backward kernels on the host: problems at random, gradients in fp64, and what is wrong
with a launch.  Kernels are told here what a launch passes to them.

    python -m tests.kernels.emulated.backward --kernels 40 --problems 10 --seed 0

draws kernels and problems, a line for each kernel; the exit status is 1 if something was found.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import itertools
import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from fa_tune.build.native import abi
from fa_tune.core.workload import DType, Workload
from fa_tune.families.sources import closure
from tests.kernels.emulated.emulation import (
    CLUSTERS,
    EmulationFailed,
    Guarded,
    Schedule,
    Shape,
    emulate,
    library_of,
    map_bytes,
    schedules,
)
from tests.kernels.emulated.judging import LONGEST_TEXT, Verdict, in_own_process
from tests.kernels.emulated.problems import (
    LAYOUTS,
    Bits,
    Problem,
    Room,
    attention,
    to_bits,
    to_float,
)

ENTRY = "sm90/bwd/entry.cu"
TRAITS = ("causal", "ragged", "lse", "window", "sink", "softcap", "alibi", "hook", "packed")
PADDED = 128  # queries: what is per query in the workspace comes in as many
LIMIT_S = 600.0
# The root mean square error by that of sums of magnitudes: rounding of P, dS, O and the result.
LIMIT = {DType.FP16: 2.0**-11, DType.BF16: 2.0**-8}
ONE_PASS = ("prepare", "kernel", "finish")
TWO_PASSES = ("dq", "kernel")
# Of each kernel: the tensors of its maps, and how many rows their boxes have.
MAPS: Mapping[str, Callable[[Kernel], dict[str, int]]] = {
    "prepare": lambda _: {},
    "finish": lambda _: {},
    "kernel": lambda k: {"q": k.B_r, "k": 64, "v": 64, "d_o": k.B_r, "dk": 64, "dv": 64},
    "dq": lambda k: {"q": 64, "k": k.dq_keys, "v": k.dq_keys, "d_o": 64, "dq": 64},
}
LACKING = 'int lacking = 0;\nextern "C" void set_lacking(int number) { lacking = number; }\n'
THREADS = {"prepare": 256, "finish": 256, "kernel": 384, "dq": 384}


class _Strides(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_longlong) for name in ("batch", "seq", "head"))


class _Params(ctypes.Structure):
    """kernels/sm90/bwd/params.cuh."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("o", "d_o", "dq")),
        *((f"{name}_strides", _Strides) for name in ("o", "d_o", "dq")),
        *((name, ctypes.c_void_p) for name in ("lse", "lse2", "delta", "dq_sum", "counters")),
        *(
            (name, ctypes.c_int)
            for name in (
                *("heads", "heads_per_kv", "seq_len_q", "seq_len_kv", "padded_q", "batch"),
                *("diagonal", "first_diagonal", "l2_head_group"),
            )
        ),
        ("softmax_scale", ctypes.c_float),
    )


@dataclass(frozen=True)
class Kernel:
    """The kernels of a config and of compile-time traits (`causal+ragged`)."""

    dtype: DType
    d_head: int
    q_stages: int = 2
    turns: bool = True
    two_pass: bool = False
    dynamic: bool = False
    dq_keys: int = 96
    traits: str = ""

    @property
    def B_r(self) -> int:
        """Queries of a step."""
        return 64 if self.d_head == 128 else 128

    B_c = 128  # keys of a CTA

    @property
    def launches(self) -> tuple[str, ...]:
        """The kernels of a call."""
        return TWO_PASSES if self.two_pass else ONE_PASS

    def has(self, trait: str) -> bool:
        """Whether it was compiled for it."""
        return trait in self.traits.split("+")

    def library(
        self,
        folder: Path,
        edit: Callable[[dict[str, str]], Mapping[str, str]] = lambda headers: headers,
    ) -> Path:
        """Compiled, of the sources that `edit` makes of those there are, where `lacking` is a
        number that `judge` is given.  Raises ValueError, ToolMissing."""
        fields = (
            *(f"DType::{self.dtype.name}", self.d_head, self.B_r, self.B_c, self.q_stages),
            *(self.turns, self.two_pass, self.dynamic, self.dq_keys),
        )
        config = f"Sm90BackwardConfig{{{', '.join(map(_literal, fields))}}}"
        traits = f"WorkloadTraits{{{', '.join(_literal(self.has(name)) for name in TRAITS)}}}"
        sizes = "".join(
            f'extern "C" unsigned shared_bytes_{kernel}() '
            f"{{ return sizeof(fa_tune::sm90::backward::{layout}<{config}>); }}\n"
            for kernel, layout in (("kernel", "SharedMemory"), ("dq", "DqSharedMemory"))
        )
        headers = edit(dict(closure(ENTRY)))
        names = [f"sm90_backward_{kernel}<{config}, {traits}>" for kernel in self.launches]
        return library_of(headers, f'{LACKING}#include "{ENTRY}"\n{sizes}', names, folder)


def _literal(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# --- problems -------------------------------------------------------------------------------


@dataclass(frozen=True)
class BackwardProblem:
    """A forward problem, and what its results' gradient is."""

    forward: Problem
    d_o: Bits
    l2_head_group: int
    ctas: int  # of a grid that is resident

    @property
    def workload(self) -> Workload:
        """What it is of."""
        return self.forward.workload

    @property
    def last_diagonal(self) -> int:
        """Query i sees no key after i + this."""
        w = self.workload
        right = 0 if w.causal else w.window_right
        return w.seq_len_kv if right is None else w.diagonal + right

    @property
    def first_diagonal(self) -> int:
        """Query i sees no key before i + this."""
        w = self.workload
        return -w.seq_len_q if w.window_left is None else w.diagonal - w.window_left

    def seen(self) -> np.ndarray:
        """Which keys a query sees, [seq_len_q, seq_len_kv]."""
        w = self.workload
        place = np.arange(w.seq_len_kv) - np.arange(w.seq_len_q)[:, None]
        right = w.causal or w.window_right is not None
        seen = place <= self.last_diagonal if right else np.ones_like(place, bool)
        return seen & (place >= self.first_diagonal) if w.window_left is not None else seen


def draw_problem(kernel: Kernel, seed: str) -> BackwardProblem:
    """A problem of a kernel's traits."""
    dice = random.Random(seed)
    whole = not kernel.has("ragged")

    def length(*blocks: int) -> int:
        block = dice.choice(blocks)
        near = dice.choice((1, block - 1, block, block + 1, 2 * block, 2 * block + 1, 3 * block))
        return max(1, min(400, dice.choice((near, dice.randint(1, 400)))))

    q = length(64, 128)
    kv = 128 * dice.randint(1, 3) if whole else length(kernel.B_c, kernel.dq_keys)
    if dice.random() < 0.3 and not whole:
        kv = q
    kv_heads, group = dice.choice((1, 1, 2, 3)), dice.choice((1, 1, 2, 3, 4))
    batch = dice.choice((1, 1, 2))
    while batch * kv_heads * group * q * kv > 3e5 and batch * kv_heads * group > 1:
        batch, kv_heads, group = 1, max(1, kv_heads - 1), max(1, group - (kv_heads == 1))
    fields: dict[str, object] = {}
    longest = max(q, kv)
    if kernel.has("causal"):
        fields["causal"] = dice.random() < 0.6
        if not fields["causal"]:
            fields["window_right"] = int(longest ** dice.random()) - 1
    if kernel.has("window"):
        fields["window_left"] = int(longest ** dice.random()) - 1
    if fields:
        fields["bottom_right"] = dice.random() < 0.6
    if dice.random() < 0.2:
        fields["sink"] = True
    if dice.random() < 0.2:
        fields["softmax_scale"] = 10 ** dice.uniform(-2, 0)
    shape = (batch, kv_heads * group, kv_heads, q, kv, kernel.d_head, kernel.dtype)
    return make_problem(Workload(*shape, **fields), dice)


def make_problem(
    workload: Workload, dice: random.Random, layouts: Sequence[str] = LAYOUTS
) -> BackwardProblem:
    """A workload's inputs, in one of these layouts."""
    forward = Problem.draw(workload, dice.choice(layouts), dice.randrange(2**31))
    d_o = Room.of(forward.q.shape, dice.choice(("plain", "strided", "transposed"))).inside
    values = np.random.default_rng(dice.randrange(2**31)).standard_normal(d_o.shape)
    d_o[...] = to_bits(values + 0.25, workload.dtype)
    return BackwardProblem(forward, d_o, dice.choice((1, 2, 3)), dice.randint(1, 3))


@dataclass(frozen=True)
class Gradients:
    """dQ, dK and dV in fp64, and of each the sums of magnitudes that it is of."""

    right: Mapping[str, np.ndarray]
    magnitude: Mapping[str, np.ndarray]


def gradients(problem: BackwardProblem, o: np.ndarray, lse: np.ndarray) -> Gradients:
    """What must come out, [batch, seq, heads, d], of exact O and log-sum-exp."""
    w, forward = problem.workload, problem.forward
    group = w.heads // w.kv_heads
    tensors = (forward.q, forward.k, forward.v, problem.d_o)
    q, k, v, d_o = (to_float(t, w.dtype).transpose(0, 2, 1, 3) for t in tensors)
    o = o.transpose(0, 2, 1, 3)
    k, v = (np.repeat(t, group, axis=1) for t in (k, v))
    scores = np.where(problem.seen(), q @ k.swapaxes(-1, -2) * w.scale, -np.inf)
    p = np.exp(scores - np.where(np.isinf(lse), 0.0, lse)[..., None])
    dp = d_o @ v.swapaxes(-1, -2)
    delta, most = (x.sum(-1, keepdims=True) for x in (o * d_o, abs(o * d_o)))
    ds, ds_most = p * (dp - delta) * w.scale, p * (abs(dp) + most) * w.scale

    def found(p: np.ndarray, ds: np.ndarray, *of: np.ndarray) -> dict[str, np.ndarray]:
        q, k, d_o = of
        made = {"dq": ds @ k, "dk": ds.swapaxes(-1, -2) @ q, "dv": p.swapaxes(-1, -2) @ d_o}
        for name in ("dk", "dv"):
            shape = (w.batch, w.kv_heads, group, w.seq_len_kv, w.d_head)
            made[name] = made[name].reshape(shape).sum(2)
        return {name: x.transpose(0, 2, 1, 3) for name, x in made.items()}

    return Gradients(found(p, ds, q, k, d_o), found(p, ds_most, abs(q), abs(k), abs(d_o)))


# --- launching ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """What a call wrote."""

    rooms: Mapping[str, Room]

    def bits(self, *names: str) -> bytes:
        """All of some outputs, with what surrounds them."""
        return b"".join(self.rooms[name].whole.tobytes() for name in names)


def launch(
    kernel: Kernel,
    library: Path,
    problem: BackwardProblem,
    schedule: Schedule,
    *,
    forward_results: tuple[np.ndarray, np.ndarray] | None = None,
) -> tuple[Result, Gradients]:
    """A call's launches, one after another, on exact O and log-sum-exp or on those given.  Raises
    EmulationFailed."""
    w, forward = problem.workload, problem.forward
    exact, lse = forward_results or attention(forward)[::2]
    o = Room.of(forward.q.shape, forward.out_layout).inside
    o[...] = to_bits(exact, w.dtype)
    rooms = {
        "dq": Room.of(forward.q.shape, forward.out_layout),
        "dk": Room.of((w.batch, *forward.k.shape[1:]), forward.out_layout),
        "dv": Room.of((w.batch, *forward.v.shape[1:]), forward.out_layout),
    }
    inputs = {"q": forward.q, "k": forward.k, "v": forward.v, "d_o": problem.d_o, "o": o}
    tensors = inputs | {name: room.inside for name, room in rooms.items()}
    padded = -(-w.seq_len_q // PADDED) * PADDED
    rows = w.batch * w.heads * padded
    counters = Guarded.of(8, 0)
    workspace = {name: Guarded.of(4 * rows, 0xFF) for name in ("lse2", "delta")}
    workspace["dq_sum"] = Guarded.of(0 if kernel.two_pass else 4 * rows * w.d_head, 0xFF)
    lse32 = lse.astype(np.float32)
    params = _Params(
        *(tensors[name].ctypes.data for name in ("o", "d_o", "dq")),
        *(_strides(tensors[name]) for name in ("o", "d_o", "dq")),
        lse32.ctypes.data,
        *(guarded.inside.ctypes.data for guarded in (*workspace.values(), counters)),
        *(w.heads, w.heads // w.kv_heads, w.seq_len_q, w.seq_len_kv, padded, w.batch),
        *(problem.last_diagonal, problem.first_diagonal, problem.l2_head_group, w.scale),
    )
    before = {name: t.copy() for name, t in inputs.items()}
    written = [room.whole for room in rooms.values()]
    written += [guarded.whole for guarded in (*workspace.values(), counters)]
    for number, name in enumerate(kernel.launches):
        tiles = {
            "kernel": -(-w.seq_len_kv // kernel.B_c) * w.kv_heads,
            **dict.fromkeys(("prepare", "finish", "dq"), padded // PADDED * w.heads),
        }[name] * w.batch
        resident = name in ("kernel", "dq")
        ctas = min(tiles, problem.ctas) if kernel.dynamic and resident else tiles
        shared = _shared_bytes(library, name) if resident else 0
        maps = [map_bytes(_map(tensors[t], box)) for t, box in MAPS[name](kernel).items()]
        shape = Shape((ctas, 1, 1), (THREADS[name], 1, 1), shared, CLUSTERS)
        hidden = written if number > 0 else []
        emulate(library, number, shape, [*maps, bytes(params)], schedule, hidden)
    if counters.inside.any():
        raise EmulationFailed("the counters are not as they were")
    if not all(g.is_clean_outside() for g in (*workspace.values(), counters)):
        raise EmulationFailed("it wrote beside the workspace or the counters")
    if any((t != before[name]).any() for name, t in inputs.items()):
        raise EmulationFailed("it wrote to its inputs")
    return Result(rooms), gradients(problem, exact, lse)


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
    kernel: Kernel,
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
    kernel: Kernel,
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


def draw_kernel(seed: str) -> Kernel:
    """A kernel that can run."""
    dice = random.Random(seed)
    two_pass, dynamic = dice.random() < 0.4, dice.random() < 0.5
    d_head = dice.choice((64, 128))
    fits = d_head == 64 or two_pass or not dynamic
    return Kernel(
        *(dice.choice(list(DType)), d_head, dice.choice((2, 3) if fits else (2,))),
        turns=dice.random() < 0.7,
        two_pass=two_pass,
        dynamic=dynamic,
        dq_keys=dice.choice((64, 80, 96, 112, 128)[: 3 if d_head == 128 and dynamic else 5]),
        traits=dice.choice(MASKS),
    )


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernels", type=int, default=20)
    parser.add_argument("--problems", type=int, default=5, help="of each kernel")
    parser.add_argument("--repeats", type=int, default=1, help="calls of a problem but its first")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="kernel, from 0")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()

    def job(number: int) -> bool:
        seed = f"{options.seed}/{number}"
        kernel = draw_kernel(seed)
        said = judge(
            *(kernel, kernel.library(Path(folder)), partial(_drawn, kernel, seed)),
            count=options.problems,
            repeats=options.repeats,
            seed=number,
        )
        fields = ", ".join(map(str, dataclasses.astuple(kernel)))
        print(f"{number} {fields}: {said.launches} calls, {'; '.join(said.findings) or 'right'}")
        sys.stdout.flush()
        return bool(said.findings)

    numbers = range(options.first, options.first + options.kernels)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        found = sum(pool.map(job, numbers))
    print(f"{options.kernels} kernels, {found} not right")
    return 1 if found else 0


def _drawn(kernel: Kernel, seed: str, number: int) -> BackwardProblem:
    return draw_problem(kernel, f"{seed}/{number}")


if __name__ == "__main__":
    sys.exit(main())
