"""What FlashAttention 2's parameters mean, in any mixture: each row is computed here key by key in
fp64, from the words of the parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fa_tune.op import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache

D_HEAD, D_V = 8, 4
FEW = settings(max_examples=60, deadline=None)


pytestmark = pytest.mark.filterwarnings("ignore")


@dataclass(frozen=True)
class Meant:
    """One problem's options, as the functions take them."""

    causal: bool
    window_size: tuple[int, int]
    softcap: float
    softmax_scale: float | None
    slopes: bool

    def options(self, alibi_slopes: Tensor | None) -> dict[str, Any]:
        return {
            "causal": self.causal,
            "window_size": self.window_size,
            "softcap": self.softcap,
            "softmax_scale": self.softmax_scale,
            "alibi_slopes": alibi_slopes if self.slopes else None,
        }


SIDES = st.integers(-1, 6)
MEANT = st.builds(
    Meant,
    causal=st.booleans(),
    window_size=st.tuples(SIDES, SIDES),
    softcap=st.sampled_from([0.0, 0.5, 30.0]),
    softmax_scale=st.sampled_from([None, 0.1, 1.0]),
    slopes=st.booleans(),
)
SEEDS = st.integers(0, 2**20)
LENGTHS = st.integers(0, 7)


def row_by_row(
    q: Tensor, k: Tensor, v: Tensor, meant: Meant, slopes: Tensor
) -> tuple[Tensor, Tensor]:
    """One sequence, [rows, heads, d]: the output, and the log-sum-exp [heads, rows]."""
    n_q, heads, _ = q.shape
    n_kv, kv_heads, _ = k.shape
    out = torch.zeros(n_q, heads, v.shape[2], dtype=torch.float64)
    lse = torch.full((heads, n_q), -math.inf, dtype=torch.float64)
    scale = 1 / math.sqrt(q.shape[2]) if meant.softmax_scale is None else meant.softmax_scale
    left, right = meant.window_size
    for head in range(heads):
        of_kv = head // (heads // kv_heads)
        for i in range(n_q):
            own = i + n_kv - n_q  # the last query is beside the last key
            first = 0 if left < 0 else max(0, own - left)
            last = n_kv - 1 if right < 0 else min(n_kv - 1, own + right)
            if meant.causal:
                last = min(last, own)
            total, row = 0.0, torch.zeros(v.shape[2], dtype=torch.float64)
            for j in range(first, last + 1):
                score = scale * float(q[i, head] @ k[j, of_kv])
                if meant.softcap > 0:
                    score = meant.softcap * math.tanh(score / meant.softcap)
                if meant.slopes:
                    score -= float(slopes[head]) * abs(own - j)
                total += math.exp(score)
                row += math.exp(score) * v[j, of_kv]
            if last >= first:
                out[i, head], lse[head, i] = row / total, math.log(total)
    return out, lse


def draw(seed: int, *shapes: tuple[int, ...]) -> list[Tensor]:
    dice = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=dice, dtype=torch.float64) for shape in shapes]


def near(found: Tensor, expected: Tensor) -> bool:
    return torch.allclose(found.double(), expected, rtol=1e-5, atol=1e-5)


@FEW
@given(MEANT, SEEDS, st.integers(1, 7), LENGTHS, st.sampled_from([(4, 2), (3, 1), (2, 2)]))
def test_dense(meant: Meant, seed: int, n_q: int, n_kv: int, heads: tuple[int, int]) -> None:
    h, kv = heads
    shapes = ((2, n_q, h, D_HEAD), (2, n_kv, kv, D_HEAD), (2, n_kv, kv, D_V), (2, h))
    q, k, v, slopes = draw(seed, *shapes)
    out, lse, _ = flash_attn_func(q, k, v, **meant.options(slopes), return_attn_probs=True)
    for b in range(2):
        expected, sums = row_by_row(q[b], k[b], v[b], meant, slopes[b])
        assert near(out[b], expected)
        assert near(lse[b], sums)


@FEW
@given(MEANT, SEEDS, st.lists(st.tuples(LENGTHS, LENGTHS), min_size=1, max_size=4), st.booleans())
def test_packed(meant: Meant, seed: int, lengths: list[tuple[int, int]], one_for_all: bool) -> None:
    n_q, n_kv = (sum(pair[side] for pair in lengths) for side in (0, 1))
    shapes = ((n_q, 4, D_HEAD), (n_kv, 2, D_HEAD), (n_kv, 2, D_V), (len(lengths), 4))
    q, k, v, slopes = draw(seed, *shapes)
    if one_for_all:
        slopes = slopes[:1].expand(len(lengths), 4)
    starts = [
        torch.tensor([0, *(pair[side] for pair in lengths)]).cumsum(0).int() for side in (0, 1)
    ]
    longest = [max(pair[side] for pair in lengths) for side in (0, 1)]
    options = meant.options(slopes[0] if one_for_all else slopes)
    out, lse, _ = flash_attn_varlen_func(
        q, k, v, *starts, *longest, **options, return_attn_probs=True
    )
    for b in range(len(lengths)):
        rows, keys = (slice(*s[b : b + 2].tolist()) for s in starts)
        expected, sums = row_by_row(q[rows], k[keys], v[keys], meant, slopes[b])
        assert near(out[rows], expected)
        assert near(lse[:, rows], sums)


@FEW
@given(MEANT, SEEDS, st.integers(1, 4), st.lists(LENGTHS, min_size=1, max_size=4), st.data())
def test_caches(meant: Meant, seed: int, n_q: int, lengths: list[int], data: st.DataObject) -> None:
    """In one piece, in rows of a larger one, or in pages; with new keys or without."""
    kind = data.draw(st.sampled_from(["whole", "rows", "pages"]))
    added = data.draw(st.integers(0, 3))
    alike = data.draw(st.booleans())
    batch, page = len(lengths), 4
    if alike:
        lengths = lengths[:1] * batch
    pages = -(-(max(lengths) + added) // page) + 1
    shapes = [(batch, n_q, 4, D_HEAD), (batch, 4)]
    shapes += [(batch, n, 2, d) for n in (pages * page, added) for d in (D_HEAD, D_V)]
    q, slopes, keys, values, new_k, new_v = draw(seed, *shapes)
    options = meant.options(slopes)
    order = torch.randperm(batch * pages, generator=torch.Generator().manual_seed(seed))
    given_k, given_v = keys.clone(), values.clone()
    if kind == "rows":
        places = order[:batch].int()
        given_k, given_v = (
            torch.full_like(t, torch.nan).repeat(pages, 1, 1, 1) for t in (keys, values)
        )
        given_k[places.long()], given_v[places.long()] = keys, values
        options["cache_batch_idx"] = places
    elif kind == "pages":
        given_k, given_v = torch.empty_like(keys), torch.empty_like(values)
        given_k, given_v = (t.view(-1, page, *t.shape[2:]) for t in (given_k, given_v))
        given_k[order] = keys.view_as(given_k)
        given_v[order] = values.view_as(given_v)
        options["block_table"] = order.view(batch, pages).int()
    if added:
        options |= {"k": new_k, "v": new_v}
    told: int | Tensor = torch.tensor(lengths, dtype=torch.int32)
    if alike and kind != "pages":
        told = lengths[0]
    out, lse = flash_attn_with_kvcache(
        q, given_k, given_v, cache_seqlens=told, **options, return_softmax_lse=True
    )
    for b, n in enumerate(lengths):
        k, v = torch.cat((keys[b, :n], new_k[b])), torch.cat((values[b, :n], new_v[b]))
        expected, sums = row_by_row(q[b], k, v, meant, slopes[b])
        assert near(out[b], expected)
        assert near(lse[b], sums)
