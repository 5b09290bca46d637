"""The forward pass: O = softmax(scale · Q Kᵀ) V, and the log-sum-exp of each row if wanted."""

from __future__ import annotations

import itertools
import math
from typing import Any

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import FORWARD, DType, Workload
from fa_tune.ops.base import (
    NORMAL,
    SINK_FIRST,
    SINK_LAST,
    CheckCase,
    Figures,
    TensorSpec,
    reference_limits,
)
from fa_tune.ops.traits import Traits

LSE_TOLERANCE = 2e-5
LARGE_SCORE = 1e5
# With normal inputs of variance 1 the largest of some hundred scores is about this many times
# scale · sqrt(d_head).
LARGEST_NORMAL = 3.5
FAR_SCALE = 1e-4  # every weight is nearly the same
WIDE_SCALES = (1e-6, 1e-3, 30.0, 1e6)
PEAKED_NATS = 12.0
LONG = (16384, 131072)
# Of verification's windows and soft caps.
LEFTS = (70, 0, 5, 200)
RIGHTS = (3, 100)
PACKED_LEFTS = (9, 70, 0, 33, 5)
SOFTCAPS = (15.0, 50.0, 2.0)
SHAPE = ("batch", "heads", "kv_heads", "seq_len_q", "seq_len_kv", "d_head", "dtype")


class Forward:
    """The operation's side of `ops.base.Operation`."""

    name = FORWARD

    def tensors(self, workload: Workload) -> tuple[TensorSpec, ...]:
        """Q, K, V, O and, where they are wanted, the log-sum-exp, the sinks, the slopes, where
        sequences begin, and what the device knows of a cache.  A packed batch is one element with
        the rows of all sequences."""
        w = workload
        batch, rows_q, rows_kv = w.rows
        queries = (batch, rows_q, w.heads, w.d_head)
        keys = (*cache_extents(w), w.kv_heads, w.d_head)
        values = (*keys[:3], w.d_v)
        narrow = 1 if w.kv_e4m3 else 0
        unread = 0
        if w.cached:
            unread = (keys[0] * keys[1] - w.keys_in_all) * w.kv_heads
            unread *= narrow or w.dtype.size_bytes
        found = [
            TensorSpec("q", queries, w.dtype),
            TensorSpec("k", keys, w.dtype, unread_bytes=unread * w.d_head, element_bytes=narrow),
            TensorSpec("v", values, w.dtype, unread_bytes=unread * w.d_v, element_bytes=narrow),
            TensorSpec("o", (*queries[:3], w.d_v), w.dtype, output=True),
        ]
        if w.lse:
            rows = (batch, w.heads, rows_q)
            found.append(TensorSpec("lse", rows, None, output=True, tolerance=LSE_TOLERANCE))
        if w.sink:
            found.append(TensorSpec("sink", (w.heads,), None))
        if w.alibi:
            found.append(TensorSpec("alibi_slopes", (w.batch, w.heads), None))
        if w.kv_e4m3:
            found += [TensorSpec(n, (w.batch, w.kv_heads), None) for n in ("k_scale", "v_scale")]
        if w.packed:
            beginnings = (w.batch + 1,)
            found += [TensorSpec(n, beginnings, None) for n in ("cu_seqlens_q", "cu_seqlens_kv")]
        if w.cached:
            found.append(TensorSpec("cache_seqlens", (w.batch,), None))
        if w.page_size:
            found.append(TensorSpec("page_table", (w.batch, pages_of(w, rows_kv)), None))
        return tuple(found)

    # Work -----------------------------------------------------------------------------------

    def unmasked_pairs(self, workload: Workload) -> int:
        """Query–key pairs of one head that attend: query i sees the keys that `seen_from` and
        `seen_to` leave; of a packed batch or a cache those of all sequences."""
        if workload.uneven:
            return sum(map(self.unmasked_pairs, sequences(workload)))
        q, kv = workload.seq_len_q, workload.seq_len_kv
        end, start = seen_to(workload), seen_from(workload)
        before_end = q * kv if end is None else _keys_before(end, q, kv)
        return before_end - (0 if start is None else _keys_before(start, q, kv))

    def visited_tiles(self, workload: Workload, B_r: int, B_c: int) -> int:
        """The tiles in which some query of the tile sees some key."""
        if workload.uneven:
            return sum(self.visited_tiles(one, B_r, B_c) for one in sequences(workload))
        q, kv = workload.seq_len_q, workload.seq_len_kv
        rows, columns = -(-q // B_r), -(-kv // B_c)
        last, first = seen_to(workload), seen_from(workload)
        if last is None and first is None:
            return rows * columns
        found = 0
        for row in range(rows):
            end = kv if last is None else min(kv, min((row + 1) * B_r, q) - 1 + last)
            start = 0 if first is None else max(0, row * B_r + first)
            found += max(0, -(-max(0, end) // B_c) - start // B_c)
        return found

    def matmul_flop(self, workload: Workload) -> int:
        """2 operations × batch·heads·pairs of d_head for one product, of d_v for the other."""
        w = workload
        return 2 * _alike(w) * w.heads * self.unmasked_pairs(w) * (w.d_head + w.d_v)

    def attn_flop(self, workload: Workload) -> int:
        """batch·heads·(4·pairs·d + 6·pairs), pairs = s² without a mask; 2 (d + d_v) for 4 d."""
        softmax = 6 * _alike(workload) * workload.heads * self.unmasked_pairs(workload)
        return self.matmul_flop(workload) + softmax

    def total_flop(self, workload: Workload, B_r: int, B_c: int) -> int:
        """All tiles that a kernel computes plus the final division of O.  Raises InvalidConfig for
        blocks that do not divide the lengths."""
        if workload.uneven:
            return sum(self.total_flop(one, B_r, B_c) for one in sequences(workload))
        if workload.seq_len_q % B_r or workload.seq_len_kv % B_c:
            lengths = f"{workload.seq_len_q}x{workload.seq_len_kv}"
            raise InvalidConfig(f"blocks {B_r}x{B_c} do not divide sequences {lengths}")
        tiles = self.visited_tiles(workload, B_r, B_c)
        of_tile = kv_tile_flop(B_r, B_c, workload.d_head, workload.d_v)
        per_head = tiles * of_tile + workload.seq_len_q * workload.d_v
        return workload.batch * workload.heads * per_head

    # Compiling ------------------------------------------------------------------------------

    def traits(self, workload: Workload, blocks: tuple[int, int], *, lse: bool = False) -> Traits:
        """Ragged: a block does not divide its sequence, or a packed batch or a cache, whose lengths
        only the device knows."""
        ragged = workload.uneven or bool(
            workload.seq_len_q % blocks[0] or workload.seq_len_kv % blocks[1]
        )
        return Traits(
            causal=seen_to(workload) is not None,
            ragged=ragged,
            lse=lse or workload.lse,
            window=seen_from(workload) is not None,
            sink=workload.sink,
            softcap=workload.softcap is not None,
            alibi=workload.alibi,
            hook=workload.score_hook or "",
            packed=workload.packed,
        )

    # Checking -------------------------------------------------------------------------------

    def verification_cases(
        self,
        blocks: tuple[int, int],
        d_head: int,
        dtype: DType,
        traits: Traits,
        *,
        d_head_v: int = 0,
        thorough: bool = False,
    ) -> tuple[CheckCase, ...]:
        """Head counts that are no power of two, grouped heads, unequal lengths, from one block to
        several; then scores of 1e5, a scale at which all weights are alike, and a sink at either
        end.  Without the ragged trait lengths are whole blocks; with it they are odd, down to 1.
        With a mask, unequal lengths come in both alignments, and some rows see no key.

        Thorough: scales from 1e-6 to 1e6, scores of 12 nats of standard deviation, and lengths to
        131072."""
        if traits.packed:
            return _packed_cases(blocks, d_head, dtype, traits, thorough=thorough)
        block = math.lcm(*blocks)
        lengths = [(block, block), (3 * block, 2 * block), (2 * block, 5 * block)]
        inputs_at = (2 * block, 3 * block)
        if traits.ragged:
            lengths = [(1, 1), (113, 203), (3 * block + 1, block - 1), (257, 1023)]
            inputs_at = (257, 509)
        shapes = [(2, 3, 3), (1, 6, 2), (3, 5, 1), (2, 4, 4)]
        scales = (None, None, 1.5 / math.sqrt(d_head), None)

        numbers = itertools.count()
        aligned = has_alignment(traits)

        def workload(
            shape: tuple[int, int, int], q: int, kv: int, bottom_right: bool, scale: float | None
        ) -> Workload:
            return example(
                traits,
                (*shape, q, kv, d_head, dtype),
                next(numbers),
                bottom_right=bottom_right,
                softmax_scale=scale,
                d_head_v=d_head_v,
            )

        found = [
            CheckCase(workload(shape, q, kv, bottom_right, scale))
            for (q, kv), shape, scale in zip(lengths, shapes, scales, strict=False)
            for bottom_right in ((False, True) if aligned else (False,))
        ]
        large = round(LARGE_SCORE / (LARGEST_NORMAL * math.sqrt(d_head)))
        for scale in (float(large), FAR_SCALE):
            found.append(CheckCase(workload((1, 4, 2), *inputs_at, aligned, scale)))
        sunk = workload((1, 4, 2), *inputs_at, aligned, None)
        found += [CheckCase(sunk, inputs) for inputs in (SINK_FIRST, SINK_LAST)]
        if thorough:
            peaked = PEAKED_NATS / math.sqrt(d_head)
            for scale in (*WIDE_SCALES, peaked):
                found.append(CheckCase(workload((2, 6, 2), *inputs_at, aligned, scale)))
            rest = 17 if traits.ragged else 0
            middle, long = (n // block * block - block * bool(rest) + rest for n in LONG)
            found.append(CheckCase(workload((1, 2, 1), middle, middle, False, None)))
            stretched = workload((1, 2, 1), 2 * block + rest, long, aligned, None)
            found += [CheckCase(stretched, word) for word in (NORMAL, SINK_FIRST, SINK_LAST)]
        return tuple(dict.fromkeys(found))

    def error_limits(self, reference: Figures, output: Figures, dtype: DType) -> Figures:
        """Those of `reference_limits`."""
        return reference_limits(reference, output, dtype)


def sequences(workload: Workload) -> tuple[Workload, ...]:
    """The sequences of a packed batch or a cache that have queries and keys, each as a problem of
    its own; its masks and distances are aligned bottom-right."""
    return tuple(workload.dense(1, q, kv) for q, kv in workload.members if q and kv)


def cache_extents(workload: Workload) -> tuple[int, int]:
    """The first two extents of K and V: batch elements and their keys, or pages and theirs.  There
    is a page for each sequence that nobody owns."""
    batch, _, rows_kv = workload.rows
    if not workload.page_size:
        return batch, rows_kv
    owned = sum(pages_of(workload, kv) for _, kv in workload.members)
    return owned + batch, workload.page_size


def pages_of(workload: Workload, keys: int) -> int:
    """The pages that so many keys of a sequence are in."""
    return -(-keys // workload.page_size)


def _alike(workload: Workload) -> int:
    """Batch elements whose pairs `unmasked_pairs` does not count."""
    return 1 if workload.uneven else workload.batch


def _packed_cases(
    blocks: tuple[int, int], d_head: int, dtype: DType, traits: Traits, *, thorough: bool
) -> tuple[CheckCase, ...]:
    """Sequences without queries, without keys and without either, of one row, of whole blocks and
    of parts; more of them than are ordered; a few long ones among many short ones; scores of 1e5.
    Thorough: 16384 keys beside a few."""
    rows, keys = blocks
    large = round(LARGE_SCORE / (LARGEST_NORMAL * math.sqrt(d_head)))
    listed = (
        f"1+0+{rows}+{2 * rows + 17}+3x1+7+{keys}+{3 * keys + 5}+0",
        f"0+0+{3 * rows + 1}+64+0+{rows - 1}x0+5+{keys - 1}+0+{keys}+{2 * keys + 1}",
    )
    found = [
        ((5, 6, 2), (1, 1), listed[0], None),
        ((6, 3, 3), (1, 1), listed[1], 1.5 / math.sqrt(d_head)),
        ((24, 4, 1), (3 * rows + 9, 5 * keys + 9), "lognormal-1.2-1", None),
        ((9, 4, 2), (rows + 1, rows + 1), "uniform-2", float(large)),
        ((301, 2, 1), (40, 40), "uniform-5", None),
    ]
    if thorough:
        found.append(((12, 4, 2), (16384, 16384), "lognormal-2-7", None))
        found.append(((4, 2, 1), (100, 100), f"16384+1+0+{rows}x{keys}+16384+3+777", None))
    return tuple(
        CheckCase(
            Workload(
                *(*shape, *longest, d_head, dtype),
                causal=traits.causal and not (traits.window and number % 2),
                lse=traits.lse,
                softmax_scale=scale,
                sink=traits.sink,
                softcap=SOFTCAPS[0] if traits.softcap else None,
                alibi=traits.alibi,
                score_hook=traits.hook or None,
                **_packed_window(traits, number),
                lengths=lengths,
            )
        )
        for number, (shape, longest, lengths, scale) in enumerate(found)
    )


def _packed_window(traits: Traits, number: int) -> dict[str, Any]:
    """The sides of a window that hide keys of the cases of `_packed_cases`."""
    if not traits.window:
        return {}
    right = RIGHTS[0] if traits.causal and number % 2 else None
    return {"window_left": PACKED_LEFTS[number % len(PACKED_LEFTS)], "window_right": right}


def seen_to(workload: Workload) -> int | None:
    """Query i sees keys before i + this; None: whatever i."""
    if workload.causal:
        return workload.diagonal + 1
    return None if workload.window_right is None else workload.diagonal + workload.window_right + 1


def seen_from(workload: Workload) -> int | None:
    """Query i sees keys from i + this on; None: whatever i."""
    return None if workload.window_left is None else workload.diagonal - workload.window_left


def _keys_before(first: int, q: int, kv: int) -> int:
    """The sum over rows i < q of i + first, or of 0 or kv where that is beyond."""
    blind = min(q, max(0, 1 - first))  # rows with 0
    partial = max(0, min(q, kv - first + 1) - blind)
    return partial * (2 * (blind + first) + partial - 1) // 2 + (q - blind - partial) * kv


def has_alignment(traits: Traits) -> bool:
    """Whether it matters to workloads with these traits how queries and keys are aligned."""
    return traits.causal or traits.window or traits.alibi


def example(
    traits: Traits, shape: tuple[Any, ...], number: int, *, bottom_right: bool, **fields: Any
) -> Workload:
    """A workload with these traits but `ragged`: windows, caps and what else there is to choose
    differ from `number` to number.  `shape`: the fields of SHAPE.  A window that
    would hide nothing is left out."""
    if traits.window:
        fields["window_left"] = LEFTS[number % len(LEFTS)]
    plain: dict[str, Any] = {
        **dict(zip(SHAPE, shape, strict=True)),
        "bottom_right": bottom_right,
        "lse": traits.lse,
        "sink": traits.sink,
        "softcap": SOFTCAPS[number % len(SOFTCAPS)] if traits.softcap else None,
        "alibi": traits.alibi,
        "score_hook": traits.hook or None,
        "lengths": "uniform-3" if traits.packed else "",
        **fields,
    }
    if traits.causal and traits.window and number % 2:
        found = Workload(window_right=RIGHTS[number // 2 % len(RIGHTS)], **plain)
        if found.window_right is not None:
            return found
    return Workload(causal=traits.causal, **plain)


def tile_softmax_flop(B_r: int, B_c: int, d_v: int) -> int:
    """Online softmax of one tile: per row, scale, max, exponent and sum of B_c scores,
    the rescale of d_v outputs, and four operations on the running statistics."""
    return B_r * (4 * B_c + d_v + 4)


def kv_tile_flop(B_r: int, B_c: int, d_head: int, d_v: int = 0) -> int:
    """QKᵀ, softmax and PV of one B_r×B_c tile; d_v 0: as d_head."""
    d_v = d_v or d_head
    return 2 * B_r * B_c * (d_head + d_v) + tile_softmax_flop(B_r, B_c, d_v)
