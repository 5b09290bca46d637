"""The sets that use the knobs after the thirteen.

fast   what may win: few blocks, with stages, rescaling, interleaving and ping-pong
wide   a product of all of them, less what cannot run and what has hopelessly few registers
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fa_tune.families.sm80 import CONSTRAINTS, FlashForwardKernelConfig
from fa_tune.families.space import expand
from fa_tune.model import DType

# Of a thread: what a config needs beyond its accumulators and resident Q, and the most that it
# may go over before a place in `wide` is wasted on it.  The fastest configs are a little over
# and spill little or nothing, because not all is live at once.
OTHER_REGISTERS = 56
REGISTER_FILE = 65536
REGISTERS_PER_THREAD = 255
REGISTERS_OVER = 24

RESCALE = 8  # P reaches 2^8: exact enough in fp16 and bf16, and rarely exceeded again

_CP_ASYNC = {"async_copy": (True,), "eager_load_blocks": (True,), "swizzled": (True,)}


def get_fast_configs(dtypes: Sequence[DType], d_head: int) -> list[FlashForwardKernelConfig]:
    """The `fast` set: the blocks that won somewhere on an H200, and what goes with them."""
    if d_head <= 64:
        blocks, turns = ((128, 128, 4), (128, 64, 4), (64, 64, 4)), ((256, 128, 8), (256, 64, 8))
    elif d_head <= 128:
        blocks, turns = ((128, 64, 4), (64, 64, 4), (128, 32, 4)), ((256, 64, 8), (128, 64, 8))
    else:
        blocks, turns = ((64, 64, 4), (128, 64, 8), (64, 32, 4)), ((128, 64, 8), (128, 32, 8))
    found: list[FlashForwardKernelConfig] = []
    for block in blocks:
        found += _expand(
            dtypes,
            d_head,
            block,
            _CP_ASYNC,
            load_tiles=((0, 1, 1), (1, 1, 1), (2, 2, 2)),
            kv_stages=(1, 2),
            rescale_threshold=(RESCALE,),
            interleaved_softmax=(False, True),
        )
    for block in turns:
        found += _expand(
            dtypes,
            d_head,
            block,
            _CP_ASYNC,
            load_tiles=((0, 1, 1), (1, 1, 1)),
            kv_stages=(2, 3),
            rescale_threshold=(RESCALE,),
            ping_pong=(True,),
        )
    return sorted({c for c in found if _worth_a_place(c, over=12)})


def get_wide_configs(dtypes: Sequence[DType], d_head: int) -> list[FlashForwardKernelConfig]:
    """The `wide` set: thousands of configs per dtype and d_head."""
    rows = [(16 * tiles * warps, warps) for warps in (2, 4, 8, 12) for tiles in (1, 2)]
    tiles = [(q, k, v) for q in (0, 1, 2) for k, v in ((1, 1), (2, 1), (2, 2))]
    found: list[FlashForwardKernelConfig] = []
    for B_r, warps in rows:
        for B_c in (16, 32, 48, 64, 96, 128):
            found += _expand(
                dtypes,
                d_head,
                (B_r, B_c, warps),
                _CP_ASYNC,
                load_tiles=tiles,
                kv_stages=(1, 2, 3),
                rescale_threshold=(0, RESCALE),
                interleaved_softmax=(False, True),
                ping_pong=(False, True),
            )
    return sorted({c for c in found if _worth_a_place(c, over=REGISTERS_OVER)})


def _expand(
    dtypes: Sequence[DType],
    d_head: int,
    block: tuple[int, int, int],
    flags: Mapping[str, Sequence[bool]],
    load_tiles: Iterable[tuple[int, int, int]],
    **axes: Sequence[bool] | Sequence[int],
) -> list[FlashForwardKernelConfig]:
    """The product of the axes for one block size and warp count."""
    B_r, B_c, n_warps = block
    found: list[FlashForwardKernelConfig] = []
    for q, k, v in load_tiles:
        every = {
            "dtype": dtypes,
            "d_head": (d_head,),
            "B_r": (B_r,),
            "B_c": (B_c,),
            "n_warps": (n_warps,),
            **flags,
            "Q_mma_load_K_tiles": (q,),
            "K_mma_load_K_tiles": (k,),
            "V_mma_load_K_tiles": (v,),
            "mma_double_buffer_loads": (False,),
            "optimized_softmax": (True,),
            **axes,
        }
        found += expand(FlashForwardKernelConfig, every)
    return found


def _worth_a_place(config: FlashForwardKernelConfig, *, over: int) -> bool:
    """It can run somewhere, and its accumulators and resident Q leave room for the rest.

    With a d_head that none can have every config is kept: their rejection tells why."""
    broken = [name for name, _, holds in CONSTRAINTS if not holds(config)]
    if broken:
        return "d_head_whole_chunk_groups" in broken
    rows = config.B_r // config.n_warps
    resident_q = rows * config.d_head // 64 if config.Q_mma_load_K_tiles == 0 else 0
    needed = rows * (config.d_head + config.B_c) // 32 + resident_q + OTHER_REGISTERS
    available = min(REGISTERS_PER_THREAD, REGISTER_FILE // config.threads)
    return needed <= available + over
