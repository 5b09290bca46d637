"""The forward pass: O = softmax(scale · Q Kᵀ) V, and the log-sum-exp of each row if wanted."""

from __future__ import annotations

import math

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import FORWARD, DType, Workload
from fa_tune.ops.base import TensorSpec, twice_and_floor
from fa_tune.ops.traits import Traits

LSE_TOLERANCE = 1e-3


class Forward:
    """The operation's side of `ops.base.Operation`."""

    name = FORWARD

    def tensors(self, workload: Workload) -> tuple[TensorSpec, ...]:
        """Q, K, V, O and, where it is wanted, the log-sum-exp."""
        w = workload
        queries = (w.batch, w.seq_len_q, w.heads, w.d_head)
        keys = (w.batch, w.seq_len_kv, w.kv_heads, w.d_head)
        found = (
            TensorSpec("q", queries, w.dtype),
            TensorSpec("k", keys, w.dtype),
            TensorSpec("v", keys, w.dtype),
            TensorSpec("o", queries, w.dtype, output=True),
        )
        if not w.lse:
            return found
        rows = (w.batch, w.heads, w.seq_len_q)
        return (*found, TensorSpec("lse", rows, None, output=True, tolerance=LSE_TOLERANCE))

    # Work -----------------------------------------------------------------------------------

    def unmasked_pairs(self, workload: Workload) -> int:
        """Query–key pairs of one head that attend; causal: query i sees key j when
        j ≤ i + workload.diagonal."""
        q, kv = workload.seq_len_q, workload.seq_len_kv
        if not workload.causal:
            return q * kv
        # Row i sees i + first keys, as long as that lies between none and all of them.
        first = workload.diagonal + 1
        blind = min(q, max(0, -workload.diagonal))  # rows that see nothing
        partial = max(0, min(q, kv - first + 1) - blind)  # rows that see some
        return partial * (2 * (blind + first) + partial - 1) // 2 + (q - blind - partial) * kv

    def visited_tiles(self, workload: Workload, B_r: int, B_c: int) -> int:
        """With a causal mask the tiles in which some query of the tile sees some key."""
        rows, columns = -(-workload.seq_len_q // B_r), -(-workload.seq_len_kv // B_c)
        if not workload.causal:
            return rows * columns
        ends = (min((row + 1) * B_r, workload.seq_len_q) + workload.diagonal for row in range(rows))
        return sum(-(-max(0, min(end, workload.seq_len_kv)) // B_c) for end in ends)

    def matmul_flop(self, workload: Workload) -> int:
        """2 products × 2 operations × batch·heads·pairs·d_head."""
        pairs = self.unmasked_pairs(workload)
        return 4 * workload.batch * workload.heads * pairs * workload.d_head

    def attn_flop(self, workload: Workload) -> int:
        """batch·heads·(4·pairs·d + 6·pairs), pairs = s² without a mask."""
        pairs = self.unmasked_pairs(workload)
        return workload.batch * workload.heads * (4 * pairs * workload.d_head + 6 * pairs)

    def total_flop(self, workload: Workload, B_r: int, B_c: int) -> int:
        """All tiles that a kernel computes plus the final division of O."""
        if workload.seq_len_q % B_r or workload.seq_len_kv % B_c:
            lengths = f"{workload.seq_len_q}x{workload.seq_len_kv}"
            raise InvalidConfig(f"blocks {B_r}x{B_c} do not divide sequences {lengths}")
        d = workload.d_head
        tiles = self.visited_tiles(workload, B_r, B_c)
        per_head = tiles * kv_tile_flop(B_r, B_c, d) + workload.seq_len_q * d
        return workload.batch * workload.heads * per_head

    # Compiling ------------------------------------------------------------------------------

    def traits(self, workload: Workload, blocks: tuple[int, int], *, lse: bool = False) -> Traits:
        """Ragged: a block does not divide its sequence."""
        ragged = bool(workload.seq_len_q % blocks[0] or workload.seq_len_kv % blocks[1])
        return Traits(causal=workload.causal, ragged=ragged, lse=lse or workload.lse)

    # Checking -------------------------------------------------------------------------------

    def verification_workloads(
        self, blocks: tuple[int, int], d_head: int, dtype: DType, traits: Traits
    ) -> tuple[Workload, ...]:
        """Head counts that are no power of two, grouped heads, unequal lengths, from one block to
        several, and a softmax scale that is not the usual one.  Without the ragged trait lengths
        are whole blocks; with it they are odd, down to 1.  With a mask, unequal lengths come in
        both alignments."""
        block = math.lcm(*blocks)
        lengths = [(block, block), (3 * block, 2 * block), (2 * block, 5 * block)]
        if traits.ragged:
            lengths = [(1, 1), (113, 203), (3 * block + 1, block - 1), (257, 1023)]
        shapes = [(2, 3, 3), (1, 6, 2), (3, 5, 1), (2, 4, 4)]
        scales = (None, None, 1.5 / math.sqrt(d_head), None)
        found = [
            Workload(
                *(batch, heads, kv_heads, q, kv, d_head, dtype),
                causal=traits.causal,
                bottom_right=bottom_right,
                lse=traits.lse,
                softmax_scale=scale,
            )
            for (q, kv), (batch, heads, kv_heads), scale in zip(
                lengths, shapes, scales, strict=False
            )
            for bottom_right in ((False, True) if traits.causal else (False,))
        ]
        return tuple(dict.fromkeys(found))

    def error_limit(self, reference_max_abs_error: float, dtype: DType) -> float:
        """Twice the same-precision reference's error, plus one rounding."""
        return twice_and_floor(reference_max_abs_error, dtype)


def tile_softmax_flop(B_r: int, B_c: int, d_head: int) -> int:
    """Online softmax of one tile: per row, scale, max, exponent and sum of B_c scores,
    the rescale of d_head outputs, and four operations on the running statistics."""
    return B_r * (4 * B_c + d_head + 4)


def kv_tile_flop(B_r: int, B_c: int, d_head: int) -> int:
    """QKᵀ, softmax and PV of one B_r×B_c tile."""
    return 4 * B_r * B_c * d_head + tile_softmax_flop(B_r, B_c, d_head)
