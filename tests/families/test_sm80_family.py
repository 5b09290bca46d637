"""The sm80 family keeps the contract, and says in Python what its kernel asserts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fa_tune import families
from fa_tune.core.arch import limits
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import DType, Workload
from fa_tune.families.sm80.config import BARRIER_BYTES, FlashForwardKernelConfig, ProductOrder
from fa_tune.families.sm80.constraints import CONSTRAINTS
from fa_tune.families.sm80.names import parse_short_form
from tests.described import described
from tests.families.contract import AssertedContract

_DEFAULT: FlashForwardKernelConfig = families.get("sm80").default_config(128, DType.FP16)
_TURNS: FlashForwardKernelConfig = parse_short_form(
    "(FP16, 128, 256, 64, 8): async+eager+swizzled+load_1_1_1_tiles+opt_softmax"
    "+stages_3+rescale_8+pingpong"
)


class TestSm80Contract(AssertedContract):
    name = "sm80"
    rules = CONSTRAINTS
    header = "sm80/fwd/constraints.cuh"
    of_device = "smem_fits"
    archs = ((8, 0), (8, 6), (9, 0))
    compute_capability = (9, 0)
    bad_configs = (
        replace(_DEFAULT, n_warps=0),
        replace(_DEFAULT, n_warps=64),
        replace(_DEFAULT, d_head=100),
        replace(_DEFAULT, d_head=288),
        replace(_DEFAULT, d_head_v=40),
        replace(_DEFAULT, d_head_v=288),
        replace(_DEFAULT, B_r=64, n_warps=8),
        replace(_DEFAULT, B_c=40),
        replace(_DEFAULT, d_head=96, B_c=32, B_r=128, n_warps=8),
        replace(_DEFAULT, async_copy=False),
        replace(_DEFAULT, Q_mma_load_K_tiles=3),
        replace(_DEFAULT, K_mma_load_K_tiles=-1),
        replace(_DEFAULT, V_mma_load_K_tiles=3),
        replace(_DEFAULT, B_r=512, B_c=256, n_warps=16),
        replace(_DEFAULT, kv_stages=0),
        replace(_DEFAULT, kv_stages=9),
        replace(_DEFAULT, kv_stages=2, eager_load_blocks=False),
        replace(_DEFAULT, rescale_threshold=16),
        replace(_DEFAULT, optimized_softmax=False),
        replace(_TURNS, n_warps=4),
        replace(_TURNS, n_warps=16),
        replace(_TURNS, swizzled=False),
        replace(_TURNS, async_copy=False, eager_load_blocks=False, kv_stages=1),
        replace(_TURNS, kv_stages=1),
        replace(_TURNS, B_c=272),
        replace(_TURNS, B_r=640),
        replace(_TURNS, Q_mma_load_K_tiles=2),
        replace(_TURNS, K_mma_load_K_tiles=0),
        replace(_TURNS, V_mma_load_K_tiles=2),
        replace(_TURNS, mma_double_buffer_loads=True),
        replace(_TURNS, interleaved_softmax=True),
        replace(_TURNS, kv_stages=6),
        replace(_DEFAULT, product_order=ProductOrder.SHORT_RUNS),
    )

    @pytest.mark.parametrize("arch", [(8, 0), (8, 6), (9, 0)])
    @pytest.mark.parametrize("d_head", [32, 64, 128, 192, 256])
    @pytest.mark.parametrize("d_head_v", [32, 64, 128, 192, 256])
    def test_and_for_every_pair_with_that_of_values(
        self, d_head: int, d_head_v: int, arch: tuple[int, int]
    ) -> None:
        config = families.get("sm80").default_config(d_head, DType.FP16, d_head_v=d_head_v)
        assert (config.d_head, config.d_v) == (d_head, d_head_v)
        assert families.get("sm80").constraints(config, limits(arch)) is None


# Where a config runs ------------------------------------------------------------------------


@pytest.mark.parametrize("arch", [(8, 0), (8, 6), (8, 9)])
def test_ping_pong_needs_9_0(arch: tuple[int, int]) -> None:
    family = families.get("sm80")
    small = replace(_TURNS, B_r=128, kv_stages=2, d_head=64)
    for later in ((9, 0), (10, 0), (12, 0)):
        assert family.constraints(small, limits(later)) is None
    rejected = family.constraints(small, limits(arch))
    assert rejected is not None
    assert rejected.constraint == "ping_pong_needs_9_0"
    assert rejected.reason == (
        f"ping_pong needs bulk tensor copies, sm_90 or later; the device is sm_{arch[0]}{arch[1]}"
    )
    assert family.constraints(replace(small, n_warps=4), limits(arch)) != rejected


def test_the_sentence_of_shared_memory_counts_stages_and_barriers() -> None:
    rejected = families.get("sm80").constraints(replace(_TURNS, kv_stages=4), limits((9, 0)))
    assert rejected is not None
    # 256 rows of Q and of O and 8 blocks of 64, of 256 bytes each, and a KiB of barriers.
    assert rejected.reason == "needs 257 KiB of shared memory, sm_90 allows 227 KiB per CTA"


@pytest.mark.parametrize(
    ("config", "bytes_wanted"),
    [
        (_DEFAULT, (128 + 2 * 64) * 128 * 2),
        (replace(_DEFAULT, kv_stages=3), (128 + 6 * 64) * 128 * 2),
        (_TURNS, (2 * 256 + 6 * 64) * 128 * 2 + 1024),
        (replace(_TURNS, d_head=96), (2 * 256 + 6 * 64) * 128 * 2 + 1024),
        (replace(_TURNS, d_head=32), (2 * 256 + 6 * 64) * 64 * 2 + 1024),
    ],
    ids=str,
)
def test_shared_memory(config: FlashForwardKernelConfig, bytes_wanted: int) -> None:
    workload = Workload(1, 1, 1, 1000, 1000, config.d_head, DType.FP16)
    assert config.smem_bytes == described(config, workload)[0].shared_bytes == bytes_wanted


def test_the_barriers_fit_their_place() -> None:
    """One for Q, and a full and an empty one for every stage of K and of V; 8 bytes each."""
    (in_range,) = (holds for name, _, holds in CONSTRAINTS if name == "kv_stages_in_range")
    most = max(n for n in range(1, 20) if in_range(replace(_DEFAULT, kv_stages=n)))
    assert 8 * (1 + 4 * most) <= BARRIER_BYTES


@pytest.mark.parametrize("name", ["batch", "heads"])
def test_more_than_a_grid_holds_is_refused(name: str) -> None:
    workload = Workload(1, 1, 1, 1, 1, 128, DType.FP16)
    assert described(_DEFAULT, replace(workload, **{name: 65535}))
    with pytest.raises(InvalidConfig, match=f"{name} must be at most 65535, not 65536"):
        described(_DEFAULT, replace(workload, **{name: 65536}))


def test_turns_take_a_cta_per_multiprocessor_and_others_one_per_tile() -> None:
    workload = Workload(16, 16, 16, 1000, 1000, 128, DType.FP16)
    assert described(_TURNS, workload)[0].grid == (132, 1, 1)
    few = replace(workload, batch=2, heads=4, kv_heads=4)
    assert described(_TURNS, few)[0].grid == (32, 1, 1)
    ordinary = replace(_TURNS, ping_pong=False)
    assert described(ordinary, workload)[0].grid == (4, 16, 16)


def test_more_tiles_than_32_bits_count_are_refused_with_turns() -> None:
    workload = Workload(60000, 60000, 60000, 1, 64, 128, DType.FP16)
    with pytest.raises(InvalidConfig, match="more than 1073741824 tiles"):
        described(_TURNS, workload)


def test_turns_are_verified_on_more_tiles_than_multiprocessors() -> None:
    family = families.get("sm80")
    assert family.extra_verification(_DEFAULT, "plain") == ()
    for traits in ("plain", "causal+ragged+lse"):
        (workload,) = family.extra_verification(_TURNS, traits)
        tiles = -(-workload.seq_len_q // _TURNS.B_r) * workload.heads * workload.batch
        assert tiles > 2 * 132
        assert family.traits(_TURNS, workload) == traits
