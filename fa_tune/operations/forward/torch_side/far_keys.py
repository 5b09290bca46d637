"""Keys of which each query has one that is far above the others, as heads have that look things up.

Such a key has the length of a normal one, the others FAR_NOISE of it, and the query has its
direction besides noise: so what the far keys of other queries score is noise as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from fa_tune.core.inputs import FAR_KEYS, FAR_NOISE, FAR_RISE
from fa_tune.core.workload import Workload


def add_far_keys(
    q: torch.Tensor, k: torch.Tensor, workload: Workload, generator: torch.Generator
) -> None:
    """Change Q and K, [batch, seq_len, heads, d_head], of which scores have a standard deviation
    of 1 nat; they may have more heads in front of the workload's."""
    extra = q.shape[2] - workload.heads
    group = workload.heads // workload.kv_heads
    heads = torch.arange(-extra, workload.heads, device=q.device)  # of Q; then theirs of K
    heads = (torch.div(heads, group, rounding_mode="floor") + extra).clamp(min=0)
    factor = torch.full(k.shape[:3], FAR_NOISE, device=k.device)
    for one in _sequences(workload):
        keys, queries = (one.batch, slice(*one.keys)), (one.batch, slice(*one.queries))
        mine = _draw(k[keys].shape[:2], generator)  # [far, kv_heads], ascending
        factor[keys] = factor[keys].scatter(0, mine, 1.0)
        seen = torch.searchsorted(
            mine.T.contiguous(), one.seen(mine).expand(mine.shape[1], -1).contiguous()
        )  # how many of them, [kv_heads, queries]
        dice = torch.rand(q[queries].shape[:2], generator=generator, device=q.device)
        chosen = (dice * seen.clamp(min=1).T[:, heads]).long()
        far = k[keys][mine[chosen, heads], heads]  # [queries, heads, d_head]
        length = far.square().sum(-1, keepdim=True)
        q[queries] += FAR_RISE / workload.scale * far / length
    k *= factor[..., None]


@dataclass(frozen=True)
class _Sequence:
    """Where its rows are: a batch element of the tensors, and from where to where in it."""

    batch: int
    queries: tuple[int, int]
    keys: tuple[int, int]
    causal: bool
    diagonal: int

    def seen(self, like: torch.Tensor) -> torch.Tensor:
        """How many keys each query sees, from the first one on."""
        keys, queries = (end - begin for begin, end in (self.keys, self.queries))
        if not self.causal:
            return torch.full((queries,), keys, device=like.device)
        return torch.arange(queries, device=like.device) + self.diagonal + 1


def _sequences(w: Workload) -> Iterator[_Sequence]:
    """Those that have queries and keys."""
    q_end = kv_end = 0
    _, rows_q, rows_kv = w.rows
    for number, (queries, keys) in enumerate(w.members):
        if not w.packed:
            of_q, of_kv = (0, queries), (0, keys)
        else:
            of_q = (q_end, min(q_end + queries, rows_q))
            of_kv = (kv_end, min(kv_end + keys, rows_kv))
            q_end, kv_end = of_q[1], of_kv[1]
        queries, keys = of_q[1] - of_q[0], of_kv[1] - of_kv[0]
        diagonal = keys - queries if w.bottom_right or w.uneven else w.diagonal
        if queries > 0 and keys > 0:
            yield _Sequence(0 if w.packed else number, of_q, of_kv, w.causal, diagonal)


def _draw(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Places of FAR_KEYS keys, or of all if they are fewer, for each head, in their order."""
    dice = torch.rand(shape, generator=generator, device=generator.device)
    return dice.topk(min(FAR_KEYS, shape[0]), dim=0).indices.sort(dim=0).values
