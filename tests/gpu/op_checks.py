"""What the checks of the operators share."""

import json
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import torch

from fa_tune.core.hooks import twin_of
from fa_tune.core.workload import Workload
from fa_tune.gpu.guard import use_device
from fa_tune.op.operands import Lengths
from fa_tune.op.traits import Traits, bounds
from fa_tune.operations.base import Tensors


def problem_of(workload: Workload, inputs: Tensors) -> dict[str, Any]:
    """Options of `attention` beside Q, K and V."""
    return {
        "causal": workload.causal,
        "bottom_right": workload.bottom_right,
        "softmax_scale": workload.softmax_scale,
        "window": (workload.window_left, workload.window_right),
        "sink": inputs.get("sink"),
        "softcap": workload.softcap,
        "alibi_slopes": inputs.get("alibi_slopes"),
    }


def draw(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype)


def captured(call: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A graph of a call, and what its replays write."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = call()
    return graph, found


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device="cuda")


def reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    traits: Traits,
    first: int = 0,
    weights: torch.dtype | None = None,
) -> torch.Tensor:
    """Attention in the type of the inputs; rows without keys are 0.  `first`: the number of the
    first batch element; `weights`: a type that the weights are rounded to."""
    group = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    scale = q.shape[3] ** -0.5 if traits.scale is None else traits.scale
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * scale
    if traits.softcap is not None:
        scores = traits.softcap * torch.tanh(scores / traits.softcap)
    n_q, n_kv = scores.shape[-2:]
    ahead = torch.arange(n_kv, device=q.device) - torch.arange(n_q, device=q.device)[:, None]
    if traits.alibi_slopes is not None:
        distance = (ahead - (n_kv - n_q) * traits.bottom_right).abs()
        slopes = traits.alibi_slopes.expand(q.shape[0], q.shape[2])[..., None, None]
        scores = scores - (slopes * distance).to(scores.dtype)
    if traits.score_hook is not None:
        batch, heads = (torch.arange(n, device=q.device) for n in scores.shape[:2])
        places = (first + batch[:, None, None, None], heads[:, None, None])
        rows = torch.arange(n_q, device=q.device)[:, None]
        keys = torch.arange(n_kv, device=q.device)
        scores = twin_of(traits.score_hook)(scores, *places, rows, keys)
    first, last = bounds(traits, n_q, n_kv)
    hidden = torch.zeros_like(ahead, dtype=torch.bool)
    if first is not None:
        hidden |= ahead < first
    if last is not None:
        hidden |= ahead > last
    blind = hidden.all(-1, keepdim=True)
    scores = scores.masked_fill(hidden & ~blind, -torch.inf)
    if traits.sink is not None:
        more = traits.sink.to(scores.dtype)[None, :, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat((scores, more), -1)
    found = scores.softmax(-1)[..., :n_kv].masked_fill(blind, 0.0)
    return torch.einsum("bhqk,bkhd->bqhd", found.to(weights or v.dtype).to(v.dtype), v)


def packed_lengths() -> Lengths:
    """Of 200 queries and 140 keys; a sequence has neither, one no query."""
    cum_q, cum_kv = [0, 100, 100, 100, 200], [0, 70, 70, 75, 140]
    cums = (int32(*c) for c in (cum_q, cum_kv))
    return Lengths(*cums, 100, 70)


def some_traits(heads: int, batch: int) -> list[Traits]:
    """Windows on each side and aligned either way, and what changes scores."""
    sink = torch.randn(heads, device="cuda")
    slopes = 0.2 * torch.rand(batch, heads, device="cuda")
    return [
        Traits(True, True, window_left=50),
        Traits(True, window_left=31, sink=sink),
        Traits(window_left=40, window_right=20),
        Traits(False, True, 0.2, None, 33),
        Traits(sink=sink),
        Traits(True, True, softcap=5.0),
        Traits(False, True, alibi_slopes=slopes[0]),
        Traits(True, True, None, 60, None, sink, 8.0, slopes),
    ]


def options_of(traits: Traits) -> dict[str, Any]:
    """Options of `attention`, but for tensors that want gradients."""
    return {
        "causal": traits.causal,
        "bottom_right": traits.bottom_right,
        "softmax_scale": traits.scale,
        "window": (traits.window_left, traits.window_right),
        "softcap": traits.softcap,
    }


def with_grads(
    run: Callable[..., Any], tensors: list[torch.Tensor], seed: torch.Tensor
) -> list[Any]:
    """The result of one pass, and the gradients of its tensors."""
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    out = run(*leaves)
    out.backward(seed.to(out.dtype))
    return [out.detach(), *(t.grad for t in leaves)]


def grads(run: Callable[..., Any], tensors: list[torch.Tensor], seed: torch.Tensor) -> list[Any]:
    """The gradients alone."""
    return with_grads(run, tensors, seed)[1:]


def main(checks: Mapping[str, Any]) -> None:
    """Run the checks that the command line names; JSON: name -> `right`, what the check says, or a
    traceback.  A line after each check, of all so far: the last one says all of it."""
    use_device(0)
    torch.manual_seed(0)
    found: dict[str, str] = {}
    for name in sys.argv[1:]:
        found[name] = _run(checks[name])
        print(json.dumps(found), flush=True)


def _run(check: Callable[[], str | None]) -> str:
    try:
        return check() or "right"
    except Exception:
        return traceback.format_exc()[-2500:]
