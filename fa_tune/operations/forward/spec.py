"""The forward pass: O = softmax(scale · Q Kᵀ) V, and the log-sum-exp of each row if wanted."""

from __future__ import annotations

import math

from fa_tune.core.dtypes import E4M3, FP32, INT32
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import FORWARD, DType, Workload
from fa_tune.operations.base import CheckCase, Figures, TensorSpec, reference_limits
from fa_tune.operations.forward import cases as forward_cases
from fa_tune.operations.traits import OF_FIELDS, Traits

LSE_TOLERANCE = 2e-5


class Forward:
    """The operation's side of `operations.base.Operation`."""

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
        element = w.dtype.element
        of_keys = E4M3 if w.kv_e4m3 else element
        # Where only the device knows lengths, those that stand for them may be a little more.
        unread = max(0, keys[0] * keys[1] - keys_seen(w)) * w.kv_heads
        unread *= of_keys.size_bytes
        found = [
            TensorSpec("q", queries, element),
            TensorSpec("k", keys, of_keys, unread_bytes=unread * w.d_head),
            TensorSpec("v", values, of_keys, unread_bytes=unread * w.d_v),
            TensorSpec("o", (*queries[:3], w.d_v), element, output=True),
        ]
        if w.lse:
            rows = (batch, w.heads, rows_q)
            found.append(TensorSpec("lse", rows, FP32, output=True, tolerance=LSE_TOLERANCE))
        if w.sink:
            found.append(TensorSpec("sink", (w.heads,), FP32))
        if w.alibi:
            found.append(TensorSpec("alibi_slopes", (w.batch, w.heads), FP32))
        if w.kv_e4m3:
            found += [TensorSpec(n, (w.batch, w.kv_heads), FP32) for n in ("k_scale", "v_scale")]
        if w.packed:
            beginnings = (w.batch + 1,)
            found += [TensorSpec(n, beginnings, INT32) for n in ("cu_seqlens_q", "cu_seqlens_kv")]
        if w.cached:
            found.append(TensorSpec("cache_seqlens", (w.batch,), INT32))
        if w.page_size:
            found.append(TensorSpec("page_table", (w.batch, pages_of(w, rows_kv)), INT32))
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
            if start < end:
                found += -(-end // B_c) - start // B_c
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
        unusual = workload.unusual
        return Traits(
            causal=seen_to(workload) is not None,
            ragged=ragged,
            window=seen_from(workload) is not None,
            hook=workload.score_hook or "",
            **{n: n in unusual or (n == "lse" and lse) for n in OF_FIELDS},
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
        end.  Without the ragged trait lengths are whole blocks; with it they are odd, down to 1, or
        2 with a causal mask.  With a mask, unequal lengths come in both alignments, and some rows
        see no key.

        Thorough: scales from 1e-6 to 1e6, scores of 12 nats of standard deviation, and lengths to
        131072."""
        heads = (d_head, dtype, d_head_v)
        return forward_cases.cases(blocks, heads, traits, thorough=thorough)

    def error_limits(self, reference: Figures, output: Figures, dtype: DType) -> Figures:
        """Those of `reference_limits`."""
        return reference_limits(reference, output, dtype)


OPERATION = Forward()


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


def seen_to(workload: Workload) -> int | None:
    """Query i sees keys before i + this; None: whatever i."""
    if workload.causal:
        return workload.diagonal + 1
    return None if workload.window_right is None else workload.diagonal + workload.window_right + 1


def seen_from(workload: Workload) -> int | None:
    """Query i sees keys from i + this on; None: whatever i."""
    return None if workload.window_left is None else workload.diagonal - workload.window_left


def keys_seen(workload: Workload) -> int:
    """Keys of all sequences together that some query sees."""
    w = workload
    if not w.uneven:
        return w.batch * most_keys_seen(w)
    # Each sequence is aligned by its own end.
    return sum(_keys_of(w, q, kv, kv - q) for q, kv in w.members if q)


def most_keys_seen(workload: Workload) -> int:
    """The same of one sequence that is as long as the longest."""
    w = workload
    diagonal = w.seq_len_kv - w.seq_len_q if w.packed else w.diagonal
    return _keys_of(w, w.seq_len_q, w.seq_len_kv, diagonal)


def _keys_of(workload: Workload, q: int, kv: int, diagonal: int) -> int:
    """Of a sequence whose query i is at key i + diagonal."""
    moved = diagonal - workload.diagonal
    last, first = seen_to(workload), seen_from(workload)
    end = kv if last is None else min(kv, q - 1 + last + moved)
    start = 0 if first is None else max(0, first + moved)
    return max(0, end - start)


def _keys_before(first: int, q: int, kv: int) -> int:
    """The sum over rows i < q of i + first, or of 0 or kv where that is beyond; first <= kv."""
    return _up_to(first + q) - _up_to(first) - _up_to(first + q - kv)


def _up_to(n: int) -> int:
    """The sum of the numbers from 0 up to n - 1."""
    return math.comb(max(0, n), 2)


def tile_softmax_flop(B_r: int, B_c: int, d_v: int) -> int:
    """Online softmax of one tile: per row, scale, max, exponent and sum of B_c scores,
    the rescale of d_v outputs, and four operations on the running statistics."""
    return B_r * (4 * B_c + d_v + 4)


def kv_tile_flop(B_r: int, B_c: int, d_head: int, d_v: int = 0) -> int:
    """QKᵀ, softmax and PV of one B_r×B_c tile; d_v 0: as d_head."""
    d_v = d_v or d_head
    return 2 * B_r * B_c * (d_head + d_v) + tile_softmax_flop(B_r, B_c, d_v)
