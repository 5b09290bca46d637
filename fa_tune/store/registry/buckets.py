"""The buckets of workloads that were not tuned: those of one share a choice."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from fa_tune.core.workload import BACKWARD, Workload

BLOCK, FEW_BLOCKS = 64, 1024  # rows or keys, which tiles are multiples of; of few tiles


def representative(workload: Workload) -> Workload:
    """The workload that stands for all of its bucket: batch·heads and lengths are the nearest
    powers of two in doublings, the heads one group.  So growing lengths need a choice per
    doubling.

    Of few tiles batch·heads is counted as it is: of one more than can run at a time all would take
    twice as long.  Of few rows the keys alone are counted so: which kernel is fast hangs on how
    many tiles there are for each multiprocessor, and a cluster for each tile that all run at a time
    may wait for one another with a few tiles more.  Few rows stay few and many many, since these
    want other kernels, and one sequence with a cache stays one and several several, since the
    length of one is that of all its heads.  A bucket of csrc/torch/choices.cpp is part of one of
    these; there are no caches."""
    group = workload.heads // workload.kv_heads
    if workload.packed:
        return _representative_packed(workload, group)
    if workload.decode_shape:
        batch, q = workload.batch * workload.kv_heads, workload.seq_len_q
    else:
        exact = workload.batch * workload.heads
        work = exact if _has_few_tiles(workload) else 1 << _nearest_log2(exact)
        least = min(workload.batch, 2) if workload.cached else 1
        batch, q = max(least, work // group), 1 << _nearest_log2(workload.seq_len_q)
    kv_heads = 1
    if workload.cached and workload.batch == 1:
        batch, kv_heads = kv_heads, batch
    found = replace(
        workload,
        batch=batch,
        heads=group * kv_heads,
        kv_heads=kv_heads,
        seq_len_q=q,
        seq_len_kv=1 << _nearest_log2(workload.seq_len_kv),
        softmax_scale=None,
    )
    while found.decode_shape != workload.decode_shape:
        grows = "seq_len_kv" if workload.decode_shape else "seq_len_q"
        found = replace(found, **{grows: 2 * getattr(found, grows)})
    return found


def _has_few_tiles(workload: Workload) -> bool:
    """Whether a default may divide the work of a tile among several CTAs: tiles of queries, in a
    backward pass also of keys."""
    w = workload
    tiles = w.heads * ceil(w.seq_len_q / BLOCK)
    if w.op == BACKWARD:
        tiles = min(tiles, w.kv_heads * ceil(w.seq_len_kv / BLOCK))
    return not w.cached and w.batch * tiles <= FEW_BLOCKS


def _representative_packed(workload: Workload, group: int) -> Workload:
    """The rows in all are of one group of heads, too."""
    q, kv = (
        max(1, (1 << _nearest_log2(total * workload.heads)) // group)
        for total in (workload.total_q, workload.total_kv)
    )
    return replace(
        workload,
        batch=1 << _nearest_log2(workload.batch),
        heads=group,
        kv_heads=1,
        seq_len_q=1 << _nearest_log2(workload.seq_len_q),
        seq_len_kv=1 << _nearest_log2(workload.seq_len_kv),
        total_q=q,
        total_kv=kv,
        lengths="",
        softmax_scale=None,
    )


def _nearest_log2(n: int) -> int:
    return (n * n).bit_length() // 2
