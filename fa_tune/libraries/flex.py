"""torch's FlexAttention: a kernel that torch compiles for a mask and for what is done to scores."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from fa_tune.core.errors import first_line
from fa_tune.core.workload import FORWARD, Workload
from fa_tune.libraries.base import BASIC, TORCH, WINDOW, Library, Package, sides
from fa_tune.operations.base import Launch, Problem, Tensors

if TYPE_CHECKING:
    import torch


def forward(problem: Problem) -> Launch:
    """A launch; with `workload.lse` it computes the log-sum-exp as well.  The first one compiles,
    and raises InvalidConfig where torch cannot."""
    import torch

    # Loads torch's compiler: seconds, which no other reference should wait for.
    from torch.nn.attention.flex_attention import AuxRequest

    workload, inputs = problem.workload, problem.inputs
    q, k, v = (inputs[name].transpose(1, 2) for name in "qkv")
    given: dict[str, Any] = {
        "block_mask": _block_mask(workload, q.device),
        "score_mod": _score_mod(inputs, workload),
        "scale": workload.softmax_scale,
        "enable_gqa": workload.kv_heads != workload.heads,
    }
    if workload.lse:
        given["return_aux"] = AuxRequest(lse=True)
    attend = _compiled()

    def launch() -> Tensors:
        try:
            with torch.no_grad():
                result = attend(q, k, v, **given)
        except (NotImplementedError, ValueError, torch._dynamo.exc.TorchDynamoException) as error:
            raise LIBRARY.refusal(first_line(error)) from error
        out = result[0] if isinstance(result, tuple) else result
        return {"o": out.transpose(1, 2)}

    return launch


@cache
def _compiled() -> Callable[..., Any]:
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    compiled: Callable[..., Any] = torch.compile(flex_attention, dynamic=False)
    return compiled


def _block_mask(workload: Workload, device: torch.device) -> Any:
    """Which blocks of keys queries see; None where they see all."""
    from torch.nn.attention.flex_attention import create_block_mask

    left, right = sides(workload)
    if left is None and right is None:
        return None
    diagonal = workload.diagonal

    def seen(b: Any, h: Any, query: Any, key: Any) -> Any:
        place = key - query - diagonal
        if left is None:
            return place <= right
        return place >= -left if right is None else (place <= right) & (place >= -left)

    return create_block_mask(
        seen, None, None, workload.seq_len_q, workload.seq_len_kv, device=str(device)
    )


def _score_mod(inputs: Tensors, workload: Workload) -> Callable[..., Any] | None:
    """What soft cap and ALiBi make of a score; None where they make nothing of it."""
    cap, slopes, diagonal = workload.softcap, inputs.get("alibi_slopes"), workload.diagonal
    if cap is None and slopes is None:
        return None

    import torch

    def changed(score: Any, b: Any, h: Any, query: Any, key: Any) -> Any:
        if cap is not None:
            score = torch.tanh(score / cap) * cap
        if slopes is not None:
            score = score - slopes[b, h] * (key - query - diagonal).abs()
        return score

    return changed


LIBRARY = Library(
    name="flex",
    label="FlexAttention",
    full_name="FlexAttention",
    packages=(TORCH, Package("triton", ("triton", "pytorch-triton"), "triton")),
    # torch's compiler names a kernel made from a template after what it computes.
    kernel_names=re.compile(r"triton_tem_\w*flex_attention"),
    known=BASIC | WINDOW | {"softcap", "alibi"},
    calls={FORWARD: forward},
    compiles=True,
    place=4,
)
