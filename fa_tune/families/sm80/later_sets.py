"""The sets that use the knobs after the thirteen.

fast   what may win: few blocks, with stages, rescaling, interleaving and ping-pong
wide   a product of all but the product orders, less what cannot run and what has hopelessly few
       registers; and the product orders where ping-pong is fast
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fa_tune.core.workload import DType
from fa_tune.families.axes import expand
from fa_tune.families.sm80.config import FlashForwardKernelConfig, ProductOrder, sized_as
from fa_tune.families.sm80.constraints import CONSTRAINTS

# Of a thread: what a config needs beyond its accumulators and resident Q, and the most that it
# may go over before a place in `wide` is wasted on it.  The fastest configs are a little over
# and spill nothing, because not all is live at once.
OTHER_REGISTERS = 56
REGISTER_FILE = 65536
REGISTERS_PER_THREAD = 255
REGISTERS_OVER = 24

RESCALE = 8  # P reaches 2^8: exact enough in fp16 and bf16, and rarely exceeded again

Block = tuple[int, int, int]  # B_r, B_c, n_warps
LoadTiles = tuple[int, int, int]  # of Q, K, V
Pipelines = tuple[tuple[int, bool], ...]  # kv_stages, interleaved_softmax

_CP_ASYNC = {"async_copy": (True,), "eager_load_blocks": (True,), "swizzled": (True,)}


def get_fast_configs(
    dtypes: Sequence[DType], d_head: int, d_head_v: int = 0
) -> list[FlashForwardKernelConfig]:
    """The `fast` set: what won, or came within a percent of it, at some length or mask on an
    H200, with turns or among the configs without (profiles/nvidia_h200/fast_*events.csv)."""
    found: list[FlashForwardKernelConfig] = []
    for block, load_tiles, pipelines in _fast_blocks(sized_as(d_head, d_head_v)):
        for stages, interleaved in pipelines:
            found += _expand(
                dtypes,
                (d_head, d_head_v),
                block,
                load_tiles,
                kv_stages=(stages,),
                rescale_threshold=(RESCALE,),
                interleaved_softmax=(interleaved,),
            )
    found += _in_turns(dtypes, (d_head, d_head_v), (ProductOrder.MEASURED,))
    return sorted(c for c in found if _can_run(c))


def _in_turns(
    dtypes: Sequence[DType], head_dims: tuple[int, int], orders: Sequence[ProductOrder]
) -> list[FlashForwardKernelConfig]:
    """The configs with ping-pong of `fast`, in these product orders."""
    # With turns Q and O have rows of their own in shared memory.
    d_head = max(head_dims)
    turns = (256, 128, 8) if d_head <= 64 else (256, 64, 8) if d_head <= 128 else (128, 64, 8)
    if d_head > 192:
        turns = (128, 32, 8)
    return _expand(
        dtypes,
        head_dims,
        turns,
        ((1, 1, 1),),
        kv_stages=(2, 3) if d_head <= 128 else (2,),
        rescale_threshold=(RESCALE,),
        ping_pong=(True,),
        product_order=orders,
    )


# With large blocks two stages and interleaving together lose to either alone, with small ones
# a single stage does.
_EITHER: Pipelines = ((1, False), (1, True), (2, False))
_ANY: Pipelines = (*_EITHER, (2, True))
_STAGED: Pipelines = ((2, False), (2, True))


def _fast_blocks(d_head: int) -> tuple[tuple[Block, tuple[LoadTiles, ...], Pipelines], ...]:
    """(B_r, B_c, n_warps) of the fast set, and the load tiles and pipelines that go with it: all
    of Q stays in registers where they have room for it."""
    if d_head <= 64:
        return (
            ((128, 128, 4), ((1, 1, 1),), _ANY),
            ((128, 64, 4), ((0, 1, 1),), _ANY),
            ((64, 64, 4), ((0, 1, 1),), _STAGED),
        )
    both: tuple[LoadTiles, ...] = ((1, 1, 1), (2, 2, 2))
    if d_head <= 128:
        return ((128, 64, 4), both, _EITHER), ((64, 64, 4), ((0, 1, 1),), _STAGED)
    return ((64, 64, 4), both, _EITHER), ((128, 64, 8), both, _EITHER)


def get_wide_configs(
    dtypes: Sequence[DType], d_head: int, d_head_v: int = 0
) -> list[FlashForwardKernelConfig]:
    """The `wide` set: thousands of configs per dtype and d_head.  The product orders, of which
    MEASURED is one for each mask, are tried where ping-pong is fast."""
    rows = [(16 * tiles * warps, warps) for warps in (2, 4, 8, 12) for tiles in (1, 2)]
    tiles = [(q, k, v) for q in (0, 1, 2) for k, v in ((1, 1), (2, 1), (2, 2))]
    found: list[FlashForwardKernelConfig] = []
    for B_r, warps in rows:
        for B_c in (16, 32, 48, 64, 96, 128):
            found += _expand(
                dtypes,
                (d_head, d_head_v),
                (B_r, B_c, warps),
                tiles,
                kv_stages=(1, 2, 3),
                rescale_threshold=(0, RESCALE),
                interleaved_softmax=(False, True),
                ping_pong=(False, True),
            )
    found += _in_turns(dtypes, (d_head, d_head_v), tuple(ProductOrder)[1:])
    return sorted(c for c in found if _can_run(c) and _has_registers(c))


def _expand(
    dtypes: Sequence[DType],
    head_dims: tuple[int, int],
    block: Block,
    load_tiles: Iterable[LoadTiles],
    **axes: Sequence[bool] | Sequence[int] | Sequence[ProductOrder],
) -> list[FlashForwardKernelConfig]:
    """The product of the axes for one block size and warp count."""
    B_r, B_c, n_warps = block
    d_head, d_head_v = head_dims
    found: list[FlashForwardKernelConfig] = []
    for q, k, v in load_tiles:
        every = {
            "dtype": dtypes,
            "d_head": (d_head,),
            "B_r": (B_r,),
            "B_c": (B_c,),
            "n_warps": (n_warps,),
            **_CP_ASYNC,
            "Q_mma_load_K_tiles": (q,),
            "K_mma_load_K_tiles": (k,),
            "V_mma_load_K_tiles": (v,),
            "mma_double_buffer_loads": (False,),
            "optimized_softmax": (True,),
            "d_head_v": (d_head_v,),
            **axes,
        }
        found += expand(FlashForwardKernelConfig, every)
    return found


def _can_run(config: FlashForwardKernelConfig) -> bool:
    """Somewhere, as far as the config alone says.

    With a d_head that none can have every config is kept: their rejection tells why."""
    broken = [name for name, _, holds in CONSTRAINTS if not holds(config)]
    heads = {"d_head_whole_k_steps", "d_head_v_whole_k_steps"}
    return not broken or not heads.isdisjoint(broken)


def _has_registers(config: FlashForwardKernelConfig) -> bool:
    """Whether accumulators and resident Q leave room for the rest, or nearly."""
    rows = config.B_r // config.n_warps
    resident_q = rows * config.d_head // 64 if config.Q_mma_load_K_tiles == 0 else 0
    needed = rows * (config.d_v + config.B_c) // 32 + resident_q + OTHER_REGISTERS
    return needed <= min(REGISTERS_PER_THREAD, REGISTER_FILE // config.threads) + REGISTERS_OVER
