"""Floating-point operations of a forward pass: three models, one file.

`matmul_flop` is what the literature quotes (4·s²·d; causal counts unmasked pairs only),
`attn_flop` adds six operations per score for the softmax, `total_flop` counts what a tiled
kernel does, with its per-tile softmax bookkeeping and the epilogue.
"""

from __future__ import annotations

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.model import Workload


def unmasked_pairs(workload: Workload) -> int:
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


def matmul_flop(workload: Workload) -> int:
    """2 products × 2 operations × batch·heads·pairs·d_head."""
    return 4 * workload.batch * workload.heads * unmasked_pairs(workload) * workload.d_head


def attn_flop(workload: Workload) -> int:
    """batch·heads·(4·pairs·d + 6·pairs), pairs = s² without a mask."""
    pairs = unmasked_pairs(workload)
    return workload.batch * workload.heads * (4 * pairs * workload.d_head + 6 * pairs)


def tile_softmax_flop(B_r: int, B_c: int, d_head: int) -> int:
    """Online softmax of one tile: per row, scale, max, exponent and sum of B_c scores,
    the rescale of d_head outputs, and four operations on the running statistics."""
    return B_r * (4 * B_c + d_head + 4)


def kv_tile_flop(B_r: int, B_c: int, d_head: int) -> int:
    """QKᵀ, softmax and PV of one B_r×B_c tile."""
    return 4 * B_r * B_c * d_head + tile_softmax_flop(B_r, B_c, d_head)


def visited_tiles(workload: Workload, B_r: int, B_c: int) -> int:
    """B_r×B_c tiles of one head that a kernel computes: with a causal mask those in which some
    query of the tile sees some key, each of them whole."""
    rows, columns = -(-workload.seq_len_q // B_r), -(-workload.seq_len_kv // B_c)
    if not workload.causal:
        return rows * columns
    ends = (min((row + 1) * B_r, workload.seq_len_q) + workload.diagonal for row in range(rows))
    return sum(-(-max(0, min(end, workload.seq_len_kv)) // B_c) for end in ends)


def total_flop(workload: Workload, B_r: int, B_c: int) -> int:
    """All tiles that a kernel computes (`visited_tiles`) plus the final division of O.

    Raises InvalidConfig when a block does not divide its sequence: the model counts whole
    tiles only.
    """
    if workload.seq_len_q % B_r or workload.seq_len_kv % B_c:
        raise InvalidConfig(
            f"blocks {B_r}x{B_c} do not divide sequences {workload.seq_len_q}x{workload.seq_len_kv}"
        )
    d = workload.d_head
    tiles = visited_tiles(workload, B_r, B_c)
    per_head = tiles * kv_tile_flop(B_r, B_c, d) + workload.seq_len_q * d
    return workload.batch * workload.heads * per_head


def tflops(flop: int, duration_s: float) -> float:
    """TFLOP/s of `flop` operations in `duration_s` seconds."""
    return flop / duration_s / 1e12
