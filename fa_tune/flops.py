"""Floating-point operations of a forward pass: three models, one file.

`matmul_flop` is what the literature quotes (4·s²·d; causal counts unmasked pairs only),
`attn_flop` adds six operations per score for the softmax, `total_flop` counts what a tiled
kernel does, with its per-tile softmax bookkeeping and the epilogue.
"""

from __future__ import annotations

from fa_tune.errors import InvalidConfig
from fa_tune.model import Workload


def unmasked_pairs(seq_len_q: int, seq_len_kv: int, causal: bool) -> int:
    """Query–key pairs that attend; causal: key j is seen by query i when j ≤ i."""
    if not causal:
        return seq_len_q * seq_len_kv
    square = min(seq_len_q, seq_len_kv)
    return square * (square + 1) // 2 + (seq_len_q - square) * seq_len_kv


def matmul_flop(workload: Workload) -> int:
    """2 products × 2 operations × batch·heads·pairs·d_head."""
    pairs = unmasked_pairs(workload.seq_len_q, workload.seq_len_kv, workload.causal)
    return 4 * workload.batch * workload.heads * pairs * workload.d_head


def attn_flop(workload: Workload) -> int:
    """batch·heads·(4·pairs·d + 6·pairs), pairs = s² without a mask."""
    pairs = unmasked_pairs(workload.seq_len_q, workload.seq_len_kv, workload.causal)
    return workload.batch * workload.heads * (4 * pairs * workload.d_head + 6 * pairs)


def tile_softmax_flop(B_r: int, B_c: int, d_head: int) -> int:
    """Online softmax of one tile: per row, scale, max, exponent and sum of B_c scores,
    the rescale of d_head outputs, and four operations on the running statistics."""
    return B_r * (4 * B_c + d_head + 4)


def kv_tile_flop(B_r: int, B_c: int, d_head: int) -> int:
    """QKᵀ, softmax and PV of one B_r×B_c tile."""
    return 4 * B_r * B_c * d_head + tile_softmax_flop(B_r, B_c, d_head)


def total_flop(workload: Workload, B_r: int, B_c: int) -> int:
    """All tiles of a non-causal problem plus the final division of O.

    Raises InvalidConfig when a block does not divide its sequence: the model counts whole
    tiles only.
    """
    if workload.seq_len_q % B_r or workload.seq_len_kv % B_c:
        raise InvalidConfig(
            f"blocks {B_r}x{B_c} do not divide sequences {workload.seq_len_q}x{workload.seq_len_kv}"
        )
    rows, columns = workload.seq_len_q // B_r, workload.seq_len_kv // B_c
    d = workload.d_head
    per_head = rows * (columns * kv_tile_flop(B_r, B_c, d) + B_r * d)
    return workload.batch * workload.heads * per_head


def tflops(flop: int, duration_s: float) -> float:
    """TFLOP/s of `flop` operations in `duration_s` seconds."""
    return flop / duration_s / 1e12
