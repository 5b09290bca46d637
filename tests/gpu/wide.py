"""Problems beyond those that a search verifies: scales, scores, structure and lengths at their
ends, judged by the product's criterion."""

import dataclasses
import math
from collections.abc import Iterator

import torch

from fa_tune.core import inputs
from fa_tune.core.workload import DType, Workload
from fa_tune.operations.base import NORMAL, SINK_FIRST, SINK_LAST, CheckCase, Tensors
from fa_tune.operations.forward.torch_side import expected
from fa_tune.operations.forward.torch_side import inputs as make_inputs
from fa_tune.operations.torch_side import judge
from fa_tune.operations.verification import fault
from tests.gpu.oracle import KernelCall
from tests.tensors import qkv

MEAN = 0.25
SCALES = (1e-6, 1e-3, 0.3, 3.0, 30.0, 1e3, 1e4, 1e6)
BUILT_IN = tuple(str(spec) for spec in inputs.BUILT_IN if spec != inputs.NORMAL)
# One key of each row is so many nats above the others: the same of all rows, or one of its own.
# Its rounding must not be most of the error.
DOMINANT = ("sink 10", "sink 14", "sink 17", "sink 20", "sink 24", "own 16", "own 20", "own 24")
STRUCTURE = (SINK_FIRST, SINK_LAST, *BUILT_IN, "rising", "ties", *DOMINANT)
STEP, STEP_NATS, STEP_QUERY = 128, 12.0, 8.0
# Of so many tokens a lost key shows only where it is a sink.
LONG = (
    (131072, 131072, (SINK_LAST,)),
    (1031, 131072, (NORMAL, SINK_FIRST, SINK_LAST)),
    (131071, 77, (NORMAL,)),
)
ROWS = 768  # of a long problem, at the beginning, in the middle and at the end, are judged
STREAMS = 4


def problems(d_head: int, dtype: DType, causal: bool) -> Iterator[tuple[str, Workload]]:
    """Those of every kernel, by the names of their inputs: ragged, with the log-sum-exp."""
    base = Workload(
        *(1, 4, 2, 515, 777, d_head, dtype), causal=causal, bottom_right=causal, lse=True
    )
    for scale in SCALES:
        yield NORMAL, dataclasses.replace(base, softmax_scale=scale)
    for name in STRUCTURE:
        yield name, base
    more_queries = dataclasses.replace(base, seq_len_q=777, seq_len_kv=515)
    yield NORMAL, more_queries  # with a mask, rows without keys
    yield "peaked:12", more_queries


def long_problems(d_head: int, dtype: DType, causal: bool) -> Iterator[tuple[str, Workload]]:
    """Those of 131072 tokens."""
    for q, kv, names in LONG:
        shape = (1, 2, 1, q, kv, d_head, dtype)
        for name in names:
            yield name, Workload(*shape, causal=causal, bottom_right=causal, lse=True)


def inputs_of(name: str, w: Workload, seed: int, device: str) -> Tensors:
    """Q, K and V.  rising: 128 keys are 12 nats below the next.  ties: all keys are the same.  For
    DOMINANT see there.  Any other name is that of a verification's inputs."""
    word = NORMAL if name in ("rising", "ties", *DOMINANT) else name
    given = make_inputs(w, word, seed=seed, mean=MEAN, extra_heads=1, device=device)
    if name == "rising":
        steps = torch.arange(w.seq_len_kv, device=device) // STEP * STEP_NATS
        given["q"][..., 0] = STEP_QUERY
        given["k"][..., 0] = (steps / (STEP_QUERY * w.scale))[None, :, None]
    elif name == "ties":
        given["k"][:] = given["k"][:, :1].clone()
    elif name in DOMINANT:
        kind, height = name.split()
        raised = _raise_a_sink if kind == "sink" else _raise_own_keys
        raised(given, w, float(height) / w.scale)
    return given


def _raise_a_sink(given: Tensors, w: Workload, height: float) -> None:
    given["q"][..., 0] = STEP_QUERY
    given["k"][..., 0] = 0.0
    given["k"][:, w.seq_len_kv // 3, :, 0] = height / STEP_QUERY


def _raise_own_keys(given: Tensors, w: Workload, height: float) -> None:
    """A key that the query sees, drawn at random; queries that see none stay as they are."""
    device = given["k"].device
    seen = torch.full((w.seq_len_q,), w.seq_len_kv, device=device)
    if w.causal:
        seen = (torch.arange(w.seq_len_q, device=device) + w.diagonal + 1).clamp(0, w.seq_len_kv)
    generator = torch.Generator(device=device).manual_seed(1)
    drawn = torch.rand(w.seq_len_q, generator=generator, device=device)
    own = (drawn * seen).long().clamp(max=w.seq_len_kv - 1)
    k = given["k"].float()
    directions = k / k.norm(dim=-1, keepdim=True)
    given["k"].copy_(directions)
    of_queries = directions[:, own].repeat_interleave(w.heads // w.kv_heads, 2)
    given["q"].copy_(given["q"].float() + height * of_queries)


def check(name: str, w: Workload, kernel: KernelCall, device: str = "cuda") -> list[str]:
    """What is wrong with a kernel's results, in words."""
    given = inputs_of(name, w, 1, device)
    out = torch.full(given["q"].shape, math.nan, dtype=given["q"].dtype, device=device)
    lse = torch.full((w.batch, w.heads, w.seq_len_q), math.nan, device=device)
    kernel(w, given, out, lse)
    if w.seq_len_q <= ROWS * 3:
        return why(name, w, given, out, lse)
    wrong = [] if out.isfinite().all() else [f"{name} {w.key}: not all rows are numbers"]
    for first in (0, w.seq_len_q // 2 - ROWS // 3, w.seq_len_q - ROWS):
        rows = slice(first, first + ROWS)
        told, its_out, its_lse = f"{name}, from row {first},", out[:, rows], lse[:, :, rows]
        seen = keys_of(w, rows)
        if seen <= 0:
            blank = bool((its_out == 0).all() and (its_lse == -math.inf).all())
            wrong += [] if blank else [f"{told} {w.key}: rows without keys are not empty"]
            continue
        part = dataclasses.replace(w, seq_len_q=ROWS, seq_len_kv=seen, bottom_right=w.causal)
        own = qkv(given["q"][:, rows], given["k"][:, :seen], given["v"][:, :seen])
        wrong += why(told, part, own, its_out, its_lse)
    return wrong


def keys_of(w: Workload, rows: slice) -> int:
    """How many keys, from the first, some rows see; aligned bottom-right, attention of these rows
    and keys alone is the same."""
    return rows.stop + w.diagonal if w.causal else w.seq_len_kv


def why(
    name: str, w: Workload, given: Tensors, out: torch.Tensor, lse: torch.Tensor | None
) -> list[str]:
    """What is wrong with results on such inputs, in words."""
    outputs = {"o": out} if lse is None else {"o": out, "lse": lse}
    case = judge(CheckCase(w), expected(w, given), outputs)
    return [] if case.ok else [f"{name} {w.key}: {fault(case)}"]
