"""Counts of work, tensors and bytes against a table of who sees whom, made pair by pair."""

import random
from typing import Any

import numpy as np
import pytest

from fa_tune.core import dtypes
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import DType, Workload
from fa_tune.operations import flops
from fa_tune.operations.forward.spec import OPERATION, Forward, most_keys_seen
from fa_tune.operations.traits import Traits


def listed(dice: random.Random, n: int, whole: int) -> str:
    """Lengths of n sequences, all of them multiples of `whole`; the first is not empty."""
    drawn = (dice.choice((0, 1, 2, dice.randint(3, 30))) for _ in range(n - 1))
    return "+".join(str(whole * length) for length in (dice.randint(1, 20), *drawn))


def drawn(dice: random.Random, whole: tuple[int, int]) -> Workload:
    """A small workload of any fields; lengths of queries and keys are multiples of `whole`."""
    n, kv_heads = dice.randint(1, 3), dice.randint(1, 3)
    q, kv = (w * dice.choice((dice.randint(1, 6), dice.randint(1, 25))) for w in whole)
    fields: dict[str, Any] = {f: dice.random() < 0.3 for f in ("lse", "sink", "alibi", "kv_e4m3")}
    fields["causal"] = dice.random() < 0.4
    for side in ("window_left", "window_right"):
        fields[side] = dice.choice((None, None, 0, 1, 3, 11))
    fields |= dice.choice(({}, {}, {"softcap": 15.0}, {"score_hook": "0123456789abcdef"}))
    kind = dice.choice(("dense", "packed", "unknown", "cached", "pages"))
    if kind in ("packed", "unknown"):
        del fields["kv_e4m3"]
    if kind == "packed":
        fields["lengths"] = "x".join(listed(dice, n, w) for w in whole)
    elif kind == "unknown":
        totals = (dice.randint(1, n * longest) for longest in (q, kv))
        fields |= {"packed": True, **dict(zip(("total_q", "total_kv"), totals, strict=True))}
    elif kind != "dense":
        fields |= {"cache_lengths": listed(dice, n, whole[1]), "page_size": 16 * (kind == "pages")}
    elif fields["causal"] or fields["alibi"] or fields["window_left"] is not None:
        fields["bottom_right"] = dice.random() < 0.5
    shape = (n, kv_heads * dice.randint(1, 3), kv_heads, q, kv, 64, dice.choice(list(DType)))
    return Workload(*shape, d_head_v=dice.choice((0, 32, 96)), **fields)


def table(w: Workload, q: int, kv: int) -> np.ndarray:
    """Of a sequence: which query sees which key."""
    diagonal = kv - q if w.uneven or w.bottom_right else 0
    place = np.arange(kv)[None] - np.arange(q)[:, None] - diagonal
    left, right = w.window_left, 0 if w.causal else w.window_right
    return (place >= (-np.inf if left is None else -left)) & (
        place <= (np.inf if right is None else right)
    )


def tables(w: Workload) -> list[np.ndarray]:
    """Of all sequences."""
    members = w.members if w.uneven else [(w.seq_len_q, w.seq_len_kv)] * w.batch
    return [table(w, q, kv) for q, kv in members]


BLOCKS = ((16, 8), (8, 16), (5, 7), (2, 3), (3, 2), (1, 1))
CASES = pytest.mark.parametrize("seed", range(150))


@CASES
def test_work_is_that_of_the_pairs(seed: int) -> None:
    dice = random.Random(seed)
    rows, columns = dice.choice(BLOCKS)
    w = drawn(dice, dice.choice(((1, 1), (rows, columns), (rows, 1), (1, columns))))
    seen, times = tables(w), 1 if w.uneven else w.batch
    pairs = sum(int(one.sum()) for one in seen)
    assert OPERATION.unmasked_pairs(w) * times == pairs
    assert flops.matmul_flop(w) == sum(2 * w.heads * pairs * d for d in (w.d_head, w.d_v))
    assert flops.attn_flop(w) == flops.matmul_flop(w) + 6 * w.heads * pairs
    for some in BLOCKS:
        tiles = sum(len(np.unique(np.argwhere(one) // some, axis=0)) for one in seen)
        assert OPERATION.visited_tiles(w, *some) * times == tiles
    tiles = OPERATION.visited_tiles(w, rows, columns) * times
    full = [one.shape for one in seen if one.size]
    if any(q % rows or kv % columns for q, kv in full):
        with pytest.raises(InvalidConfig, match="do not divide"):
            flops.total_flop(w, rows, columns)
        return
    # Of a tile two products and the softmax: 4 for each score, then of each row its outputs and 4.
    scores = rows * columns
    of_tile = scores * 2 * (w.d_head + w.d_v) + scores * 4 + rows * (w.d_v + 4)
    divisions = sum(q for q, _ in full) * w.d_v
    assert flops.total_flop(w, rows, columns) == w.heads * (tiles * of_tile + divisions)


@CASES
def test_tensors_are_those_of_the_fields_and_keys_that_nobody_sees_are_not_read(seed: int) -> None:
    w = drawn(random.Random(seed), (1, 1))
    seen = [int(one.any(0).sum()) for one in tables(w)]
    keys: tuple[int, ...] = (w.batch, w.seq_len_kv)
    if w.packed:
        keys = (1, w.total_kv)
    elif w.page_size:  # and one that nobody owns for each sequence
        keys = (sum(len(range(0, kv, 16)) + 1 for _, kv in w.members), 16)
    q = (1, w.total_q) if w.packed else (w.batch, w.seq_len_q)
    element = w.dtype.element
    of_keys = dtypes.E4M3 if w.kv_e4m3 else element
    # Of unknown lengths all are counted as the mean, rounded up.
    read = min(sum(seen), keys[0] * keys[1]) * w.kv_heads * of_keys.size_bytes
    rows, heads = q[0] * q[1] * w.heads, (w.batch, w.kv_heads)
    size = element.size_bytes
    expected = {
        "q": ((*q, w.heads, 64), element, False, rows * 64 * size),
        "k": ((*keys, w.kv_heads, 64), of_keys, False, read * 64),
        "v": ((*keys, w.kv_heads, w.d_v), of_keys, False, read * w.d_v),
        "o": ((*q, w.heads, w.d_v), element, True, rows * w.d_v * size),
    }
    pages = len(range(0, w.seq_len_kv, 16))
    for there, names, shape, dtype in (
        (w.lse, ["lse"], (q[0], w.heads, q[1]), dtypes.FP32),
        (w.sink, ["sink"], (w.heads,), dtypes.FP32),
        (w.alibi, ["alibi_slopes"], (w.batch, w.heads), dtypes.FP32),
        (w.kv_e4m3, ["k_scale", "v_scale"], heads, dtypes.FP32),
        (w.packed, ["cu_seqlens_q", "cu_seqlens_kv"], (w.batch + 1,), dtypes.INT32),
        (w.cached, ["cache_seqlens"], (w.batch,), dtypes.INT32),
        (w.page_size, ["page_table"], (w.batch, pages), dtypes.INT32),
    ):
        for name in names if there else ():
            expected[name] = (shape, dtype, name == "lse", 4 * int(np.prod(shape)))
    specs = Forward().tensors(w)
    needed = {t.name: (t.shape, t.dtype, t.output, t.size_bytes - t.unread_bytes) for t in specs}
    assert needed == expected
    assert {t.name: t.tolerance for t in specs if t.tolerance} == ({"lse": 2e-5} if w.lse else {})
    # The longest, as if one sequence were as long in both.
    longest = table(w, w.seq_len_q, w.seq_len_kv)
    assert most_keys_seen(w) == int(longest.any(0).sum())


@CASES
def test_traits_are_what_a_workload_uses(seed: int) -> None:
    dice = random.Random(seed)
    blocks = dice.choice(BLOCKS)
    w = drawn(dice, dice.choice(((1, 1), blocks)))
    lse = dice.random() < 0.5
    assert Forward().traits(w, blocks, lse=lse) == Traits(
        causal=w.causal or w.window_right is not None,
        ragged=w.uneven or (w.seq_len_q % blocks[0], w.seq_len_kv % blocks[1]) != (0, 0),
        lse=lse or w.lse,
        window=w.window_left is not None,
        sink=w.sink,
        softcap=w.softcap is not None,
        alibi=w.alibi,
        hook=w.score_hook or "",
        packed=w.packed,
    )
