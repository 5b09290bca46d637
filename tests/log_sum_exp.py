"""The log-sum-exp of all rows at once, which the reference's own is compared with."""

from __future__ import annotations

import torch

from fa_tune.core.workload import Workload
from fa_tune.operations.base import Tensors
from fa_tune.operations.forward.torch_side.all_inputs import wide
from fa_tune.operations.forward.torch_side.scores import changed_scores, hidden_pairs


def log_sum_exp(
    inputs: Tensors, workload: Workload, *, diagonal: int | None = None, first: int = 0
) -> torch.Tensor:
    """log Σ exp(scale · q · k) of every row in fp32, [batch, heads, seq_len_q]; −inf for a row
    that sees nothing."""
    inputs = wide(inputs)
    q, k = (t.transpose(1, 2).float() for t in (inputs["q"], inputs["k"]))
    k = k.repeat_interleave(workload.heads // workload.kv_heads, dim=1)
    slopes = inputs.get("alibi_slopes")
    scores = changed_scores(
        q @ k.transpose(-1, -2) * workload.scale,
        workload,
        None if slopes is None else slopes[..., None, None],
        diagonal=diagonal,
        of=tuple(
            torch.arange(start, start + n, device=q.device).view(shape)
            for start, n, shape in (
                (first, workload.batch, (-1, 1, 1, 1)),
                (0, workload.heads, (-1, 1, 1)),
            )
        ),
    )
    hidden = hidden_pairs(workload, q.device, diagonal)
    if hidden is not None:
        scores = scores.masked_fill(hidden, float("-inf"))
    if "sink" in inputs:
        sink = inputs["sink"][:, None, None].expand(*scores.shape[:-1], 1)
        scores = torch.cat((scores, sink), -1)
    return torch.logsumexp(scores, -1)
