"""The log-sum-exp of all rows at once, which the reference's own is compared with."""

from __future__ import annotations

import torch

from fa_tune.core.workload import Workload
from fa_tune.gpu.reference import Inputs, changed_scores, hidden_pairs


def log_sum_exp(inputs: Inputs, workload: Workload, *, diagonal: int | None = None) -> torch.Tensor:
    """log Σ exp(scale · q · k) of every row in fp32, [batch, heads, seq_len_q]; −inf for a row
    that sees nothing."""
    inputs = inputs.wide()
    q, k = (t.transpose(1, 2).float() for t in (inputs.q, inputs.k))
    k = k.repeat_interleave(workload.heads // workload.kv_heads, dim=1)
    slopes = inputs.alibi_slopes
    scores = changed_scores(
        q @ k.transpose(-1, -2) * workload.scale,
        workload,
        None if slopes is None else slopes[..., None, None],
        diagonal=diagonal,
        of=tuple(
            torch.arange(first, first + n, device=q.device).view(shape)
            for first, n, shape in (
                (inputs.first_element, workload.batch, (-1, 1, 1, 1)),
                (0, workload.heads, (-1, 1, 1)),
            )
        ),
    )
    hidden = hidden_pairs(workload, q.device, diagonal)
    if hidden is not None:
        scores = scores.masked_fill(hidden, float("-inf"))
    if inputs.sink is not None:
        sink = inputs.sink[:, None, None].expand(*scores.shape[:-1], 1)
        scores = torch.cat((scores, sink), -1)
    return torch.logsumexp(scores, -1)
