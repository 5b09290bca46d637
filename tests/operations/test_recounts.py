"""Counts of work and bytes against a table of who sees whom, made pair by pair."""

from __future__ import annotations

import random

import numpy as np
import pytest

from fa_tune.core.workload import DType, Workload
from fa_tune.operations import flops
from fa_tune.operations.forward.spec import Forward


def drawn(dice: random.Random) -> Workload:
    """Windows, masks and lengths of any kind, and head dimensions that differ."""
    n = dice.randint(1, 4)
    kind = dice.choice(("dense", "packed", "cached"))
    lengths = "+".join(str(dice.choice((0, 1, 7, dice.randint(2, 40)))) for _ in range(n - 1))
    fields = {
        "dense": {"bottom_right": True},
        "packed": {"lengths": f"{lengths}+33" if n > 1 else "33"},
        "cached": {"cache_lengths": f"{lengths}+33" if n > 1 else "33"},
    }[kind]
    window = {s: dice.choice((None, 0, 3, 20)) for s in ("window_left", "window_right")}
    causal = dice.random() < 0.5
    if causal:
        window["window_right"] = None
    if kind == "dense" and not causal and set(window.values()) == {None}:
        fields = {}
    q = dice.randint(1, 30) if kind != "packed" else 33
    shape = (n, 4, 2, q, 33 if kind != "dense" else dice.randint(1, 40), 64, DType.BF16)
    return Workload(*shape, causal=causal, d_head_v=dice.choice((0, 32, 96)), **window, **fields)


def tables(w: Workload) -> list[np.ndarray]:
    """Of each sequence: which query sees which key."""
    found = []
    for q, kv in w.members if w.uneven else [(w.seq_len_q, w.seq_len_kv)] * w.batch:
        diagonal = kv - q if w.uneven or w.bottom_right else 0
        place = np.arange(kv)[None] - np.arange(q)[:, None] - diagonal
        seen = np.ones((q, kv), bool)
        right = 0 if w.causal else w.window_right
        if right is not None:
            seen &= place <= right
        if w.window_left is not None:
            seen &= place >= -w.window_left
        found.append(seen)
    return found


@pytest.mark.parametrize("seed", range(120))
def test_counts_are_those_of_the_pairs(seed: int) -> None:
    dice = random.Random(seed)
    w = drawn(dice)
    seen, times = tables(w), 1 if w.uneven else w.batch
    pairs = sum(int(table.sum()) for table in seen)
    assert flops.unmasked_pairs(w) * times == pairs
    assert flops.matmul_flop(w) == sum(2 * 4 * pairs * d for d in (w.d_head, w.d_v))
    assert flops.attn_flop(w) == flops.matmul_flop(w) + 6 * 4 * pairs
    rows, columns = dice.choice(((16, 8), (8, 16), (5, 7)))
    tiles = 0
    for table in seen:
        for first in range(0, table.shape[0], rows):
            some = table[first : first + rows].any(0)
            # From the first key that is seen to the last: none in between is left out.
            (keys,) = np.nonzero(some)
            tiles += len({*range(keys[0] // columns, keys[-1] // columns + 1)}) if len(keys) else 0
    assert flops.visited_tiles(w, rows, columns) * times == tiles
    read = sum(int(table.any(0).sum()) if table.shape[0] else 0 for table in seen)
    named = {tensor.name: tensor for tensor in Forward().tensors(w)}
    for name, d in (("k", w.d_head), ("v", w.d_v)):
        assert named[name].size_bytes - named[name].unread_bytes == read * 2 * d * 2, name
