"""What the checks of the operators share."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import torch

from fa_tune.gpu.kernels import use_device


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view({2: torch.int16, 4: torch.int32}[tensor.element_size()])


def same_bits(one: Any, other: Any) -> bool:
    return all(torch.equal(bits(a), bits(b)) for a, b in zip(one, other, strict=True))


def draw(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype)


def reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, bottom_right: bool
) -> torch.Tensor:
    """In the type of the inputs; rows without keys are 0."""
    group = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[3] ** 0.5
    n_q, n_kv = scores.shape[-2:]
    diagonal = n_kv - n_q if bottom_right else 0
    if causal:
        hidden = torch.ones(n_q, n_kv, device=q.device).triu(diagonal + 1).bool()
        scores = scores.masked_fill(hidden, -torch.inf)
        blind = hidden.all(-1)[:, None]
        scores = scores.masked_fill(blind, 0.0)
        return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1).masked_fill(blind, 0.0), v)
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)


def grads(run: Callable[..., Any], tensors: list[torch.Tensor], seed: torch.Tensor) -> list[Any]:
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    out = run(*leaves)
    out.backward(seed.to(out.dtype))
    return [t.grad for t in leaves]


def main(checks: Mapping[str, Any]) -> None:
    """Run the checks that the command line names; JSON: name -> `right`, what the check says, or a
    traceback."""
    use_device(0)
    torch.manual_seed(0)
    print(json.dumps({name: _run(checks[name]) for name in sys.argv[1:]}))


def _run(check: Callable[[], str | None]) -> str:
    try:
        return check() or "right"
    except Exception:
        return traceback.format_exc()[-2500:]
