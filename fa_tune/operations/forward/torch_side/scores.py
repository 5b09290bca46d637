"""What becomes of scores between the products and the softmax."""

from __future__ import annotations

from typing import Any

import torch

from fa_tune.core.workload import Workload
from fa_tune.operations.forward.torch_side.hook_twin import twin_of


def changed_scores(
    scores: torch.Tensor,
    workload: Workload,
    slopes: torch.Tensor | None,
    *,
    rows: slice | None = None,
    diagonal: int | None = None,
    of: tuple[Any, ...] = (),
) -> torch.Tensor:
    """What soft cap, ALiBi and a hook make of scaled products [..., rows, seq_len_kv]; `slopes` and
    `of`, the numbers of batch elements and heads, in shapes that go with them."""
    if workload.softcap is not None:
        scores = torch.tanh(scores / workload.softcap) * workload.softcap
    if slopes is not None:
        away = places(workload, scores.device, diagonal, rows=rows).abs().to(scores.dtype)
        scores = scores - slopes.to(scores.dtype) * away
    if workload.score_hook is not None:
        queries = torch.arange(workload.seq_len_q, device=scores.device)[rows or slice(None), None]
        keys = torch.arange(workload.seq_len_kv, device=scores.device)
        scores = twin_of(workload.score_hook)(scores, *of, queries, keys)
    return scores


def hidden_pairs(
    workload: Workload,
    device: torch.device,
    diagonal: int | None = None,
    *,
    rows: slice | None = None,
) -> torch.Tensor | None:
    """Which keys each query, or those of `rows`, does not see, bool [rows, seq_len_kv]; None
    where it sees all."""
    left, right = workload.window_left, 0 if workload.causal else workload.window_right
    if left is None and right is None:
        return None
    place = places(workload, device, diagonal, rows=rows)
    hidden = torch.zeros_like(place, dtype=torch.bool)
    if right is not None:
        hidden |= place > right
    if left is not None:
        hidden |= place < -left
    return hidden


def places(
    workload: Workload,
    device: torch.device,
    diagonal: int | None = None,
    *,
    rows: slice | None = None,
) -> torch.Tensor:
    """How far each key lies behind the place i + diagonal of each query, or of those of `rows`,
    [rows, seq_len_kv]."""
    queries = torch.arange(workload.seq_len_q, device=device)[rows or slice(None), None]
    columns = torch.arange(workload.seq_len_kv, device=device)[None]
    return columns - queries - (workload.diagonal if diagonal is None else diagonal)
