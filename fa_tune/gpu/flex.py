"""torch's FlexAttention on the same problem: a kernel that torch compiles for a mask and for what
is done to scores.  Imported by workers and CPU tests only."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import Workload
from fa_tune.operations.base import Tensors


def flex_call(inputs: Tensors, workload: Workload) -> Callable[[], torch.Tensor]:
    """A call that returns [batch, heads, seq_len_q, d_v]; with `workload.lse` it computes the
    log-sum-exp as well.  The first one compiles, and raises InvalidConfig where torch cannot."""
    # Loads torch's compiler: seconds, which no other reference should wait for.
    from torch.nn.attention.flex_attention import AuxRequest

    q, k, v = (t.transpose(1, 2) for t in (inputs["q"], inputs["k"], inputs["v"]))
    given: dict[str, Any] = {
        "block_mask": _block_mask(workload, q.device),
        "score_mod": _score_mod(inputs, workload),
        "scale": workload.softmax_scale,
        "enable_gqa": workload.kv_heads != workload.heads,
    }
    if workload.lse:
        given["return_aux"] = AuxRequest(lse=True)
    attend = _compiled()

    def call() -> torch.Tensor:
        try:
            with torch.no_grad():
                result = attend(q, k, v, **given)
        except (NotImplementedError, ValueError, torch._dynamo.exc.TorchDynamoException) as error:
            why = str(error).strip().partition("\n")[0]
            raise InvalidConfig(f"FlexAttention does not take this workload: {why}") from error
        out: torch.Tensor = result[0] if isinstance(result, tuple) else result
        return out

    return call


@cache
def _compiled() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    compiled: Callable[..., Any] = torch.compile(flex_attention, dynamic=False)
    return compiled


def _block_mask(workload: Workload, device: torch.device) -> Any:
    """Which blocks of keys queries see; None where they see all."""
    from torch.nn.attention.flex_attention import create_block_mask

    left, right = workload.window_left, 0 if workload.causal else workload.window_right
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

    def changed(score: Any, b: Any, h: Any, query: Any, key: Any) -> Any:
        if cap is not None:
            score = torch.tanh(score / cap) * cap
        if slopes is not None:
            score = score - slopes[b, h] * (key - query - diagonal).abs()
        return score

    return changed
