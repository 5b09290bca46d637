"""The decode family keeps the contract, shares keys evenly, and says in Python what its kernel
asserts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest

from fa_tune import families
from fa_tune.build.native import abi
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import DType, Workload
from fa_tune.families.decode.config import Combine, DecodeConfig, KVType
from fa_tune.families.decode.constraints import CONSTRAINTS
from fa_tune.families.plan import TileOrder
from tests.described import DEVICE, described
from tests.families.contract import AssertedContract

_FAMILY = families.get("decode")
_DEFAULT: DecodeConfig = _FAMILY.default_config(128, DType.FP16)
SMALL = replace(DEVICE, multiprocessors=2)
LENGTHS = abi.Tensor(1 << 21)  # on the device
_ONE_QUERY = Workload(16, 64, 8, 1, 8192, 128, DType.FP16)


class TestDecodeContract(AssertedContract):
    name = "decode"
    rules = CONSTRAINTS
    header = "decode/constraints.cuh"
    of_device = "shared memory or threads"
    archs = ((8, 0), (8, 6), (9, 0), (12, 0))
    compute_capability = (9, 0)
    bad_configs = (
        replace(_DEFAULT, d_head=100),
        replace(_DEFAULT, d_head=288),
        replace(_DEFAULT, d_head_v=44),
        replace(_DEFAULT, d_head=96, kv_type=KVType.E4M3),
        replace(_DEFAULT, n_warps=0),
        replace(_DEFAULT, n_warps=17, B_c=272),
        replace(_DEFAULT, row_warps=3),
        replace(_DEFAULT, B_r=24),
        replace(_DEFAULT, B_r=48, d_head=96),
        replace(_DEFAULT, B_c=48),
        replace(_DEFAULT, d_head=32, B_r=64, row_warps=4, B_c=16),
        replace(_DEFAULT, stages=1),
        replace(_DEFAULT, stages=9),
        replace(_DEFAULT, ctas_per_sm=0),
        replace(_DEFAULT, ctas_per_sm=8),
        replace(_DEFAULT, min_blocks=0),
        replace(_DEFAULT, B_c=256, stages=2),
        replace(_DEFAULT, cluster=3, aligned=False),
        replace(_DEFAULT, cluster=2, aligned=False, min_blocks=2),
        replace(_DEFAULT, tile_keys=1025),
        replace(_DEFAULT, sectors=True),
        replace(_DEFAULT, aligned=False, order=TileOrder.WHOLE_ROUNDS, tile_keys=256),
        replace(_DEFAULT, order=TileOrder.CTA_PER_TILE),
    )


@dataclass(frozen=True)
class Shares:
    """Which blocks each CTA takes, as DecodeParams (kernels/decode/params.cuh) says at its end."""

    row_tiles: int
    blocks: int  # of a tile
    pitch: int  # of tiles in the line
    share: int
    ctas: int
    part_rows: int
    tiles: int
    whole: bool  # all tiles, and there is no line

    @classmethod
    def of(cls, config: DecodeConfig, workload: Workload, **given: abi.Tensor) -> Shares:
        """Those of a call."""
        params = described(config, workload, given)[0].params
        *_, kv_heads, batch, _, _, _ = head = np.frombuffer(params, np.int32, 6, len(params) - 112)
        assert head[0] == workload.heads // workload.kv_heads
        row_tiles, *numbers = map(int, np.frombuffer(params, np.int32, 6, len(params) - 88))
        return cls(row_tiles, *numbers, int(batch * kv_heads) * row_tiles, bool(config.order))

    def walk(self, cta: int) -> Iterator[tuple[int, range, bool]]:
        """Its tiles, their blocks, and whether others have blocks of the tile, too, in the order in
        which decode_kernel (kernels/decode/kernel.cuh) has them."""
        if self.whole:
            yield from ((t, range(self.blocks), False) for t in range(cta, self.tiles, self.ctas))
            return
        at, end = cta * self.share, (cta + 1) * self.share
        while at < min(end, self.tiles * self.pitch):
            tile, first = divmod(at, self.pitch)
            count = min(self.pitch - first, end - at)
            has_parts = first > 0 or first + count < self.pitch
            yield tile, range(first, min(first + count, self.blocks)), has_parts
            at += count


@pytest.mark.parametrize("batch", [1, 3, 16, 64])
@pytest.mark.parametrize("keys", [1, 1000, 8192, 131072])
@pytest.mark.parametrize("min_blocks", [1, 7])
@pytest.mark.parametrize("aligned", [False, True])
def test_every_block_of_every_tile_is_in_one_share(
    batch: int, keys: int, min_blocks: int, aligned: bool
) -> None:
    workload = replace(_ONE_QUERY, batch=batch, seq_len_kv=keys)
    config = replace(_DEFAULT, min_blocks=min_blocks, aligned=aligned)
    shares = Shares.of(config, workload)
    assert shares.tiles == batch * 8
    assert shares.blocks * config.B_c >= keys > (shares.blocks - 1) * config.B_c
    assert shares.ctas * shares.share >= shares.tiles * shares.pitch
    assert (shares.ctas - 1) * shares.share < shares.tiles * shares.pitch
    even = Shares.of(replace(config, aligned=False), workload)
    assert even.pitch == even.blocks
    assert shares.share <= even.share * 8 / 7
    assert min_blocks > 1 or shares.share >= even.share
    if shares != even:
        assert aligned
        assert shares.pitch % shares.share == 0 or shares.share % shares.pitch == 0
        assert 0 <= shares.pitch - shares.blocks < shares.share, "no part is without keys"
    assert shares.ctas <= DEVICE.multiprocessors * config.ctas_per_sm


@pytest.mark.parametrize("tiles", [1, 7, 198, 264, 265, 330, 397, 1000])
@pytest.mark.parametrize("keys", [1, 200, 900])
@pytest.mark.parametrize(
    "form",
    [
        *("ctas_2", "ctas_2+aligned", "ctas_2+min_blocks_7+aligned"),
        *("ctas_3+whole_rounds", "ctas_2+cta_per_tile"),
    ],
)
def test_in_any_order_every_block_has_one_cta(form: str, keys: int, tiles: int) -> None:
    """And a CTA has parts of no more tiles than have room in memory."""
    config = _FAMILY.parse(f"decode(FP16, 128, 16, 64, 4): {form}")
    workload = replace(_ONE_QUERY, batch=tiles, heads=1, kv_heads=1, seq_len_kv=keys)
    shares = Shares.of(config, workload)
    found: list[tuple[int, int]] = []
    for cta in range(shares.ctas):
        walked = list(shares.walk(cta))
        assert walked, "no CTA is for nothing"
        assert all(blocks for _, blocks, _ in walked), "no part is without keys"
        assert sum(has_parts for *_, has_parts in walked) <= 2
        found += [(tile, block) for tile, blocks, _ in walked for block in blocks]
    assert len(found) == tiles * shares.blocks
    assert set(found) == set(itertools.product(range(tiles), range(shares.blocks)))
    most = DEVICE.multiprocessors * config.ctas_per_sm
    assert shares.ctas <= (tiles if config.order is TileOrder.CTA_PER_TILE else most)


@pytest.mark.parametrize(
    "more",
    [
        {"batch": 2**20, "kv_heads": 2**4, "heads": 2**4, "seq_len_kv": 64 * _DEFAULT.B_c},
        {"batch": 2**16, "kv_heads": 2**8, "heads": 2**8, "seq_len_kv": 64 * _DEFAULT.B_c},
        {"batch": 1, "kv_heads": 1, "heads": 2**30, "seq_len_kv": 16 * _DEFAULT.B_c},
        {"batch": 1, "kv_heads": 1, "heads": 1, "seq_len_kv": 2**30 - 1},
    ],
)
@pytest.mark.parametrize(
    ("aligned", "order"),
    [(False, TileOrder.SHARES), (True, TileOrder.SHARES), (False, TileOrder.WHOLE_ROUNDS)],
)
def test_what_kernels_count_stays_within_32_bits(
    more: dict[str, int], aligned: bool, order: TileOrder
) -> None:
    """At the limits, one beyond which is refused: places and the end of a CTA's share."""
    config = replace(_DEFAULT, aligned=aligned, order=order)
    workload = replace(_ONE_QUERY, **more)
    shares = Shares.of(config, workload)
    assert shares.ctas * shares.share < 2**31
    assert shares.tiles * shares.pitch + shares.ctas + shares.share < 2**31
    beyond = {"batch": 1 + workload.batch}
    if workload.batch == 1:
        beyond = {"heads": 1 + workload.heads} if workload.heads > 1 else {"seq_len_kv": 2**30}
    with pytest.raises(InvalidConfig, match="a launch takes 1073741824"):
        Shares.of(config, replace(workload, **beyond))


@pytest.mark.parametrize("tile_keys", [0, 64, 1024])
def test_places_of_tiles_stay_within_32_bits_where_the_device_knows_lengths(tile_keys: int) -> None:
    """Whatever the config; a cluster has no places."""
    config = replace(_DEFAULT, aligned=False, B_c=16, n_warps=1, tile_keys=tile_keys)
    at_most = replace(_ONE_QUERY, batch=2**20, kv_heads=2**3, heads=2**3, seq_len_kv=64 * 16)
    beyond = replace(at_most, batch=2**20 + 1)
    shares = Shares.of(config, at_most, cache_seqlens=LENGTHS)
    places = shares.tiles * (64 + -(-tile_keys // config.B_c))
    assert places + shares.ctas + -(-places // shares.ctas) < 2**31
    with pytest.raises(InvalidConfig, match="a launch takes 1073741824"):
        Shares.of(config, beyond, cache_seqlens=LENGTHS)
    cluster = replace(config, cluster=2, tile_keys=0)
    assert described(cluster, beyond, {"cache_seqlens": LENGTHS})


def test_rows_are_the_queries_of_a_group_of_heads() -> None:
    workload = replace(_ONE_QUERY, seq_len_q=5)
    for rows, tiles, part_rows in ((16, 3, 16), (32, 2, 32), (64, 1, 40)):
        shares = Shares.of(replace(_DEFAULT, B_r=rows), workload)
        assert (shares.row_tiles, shares.part_rows) == (tiles, part_rows)


def test_a_mask_leaves_out_the_blocks_that_no_query_sees() -> None:
    workload = Workload(1, 8, 1, 2, 1024, 128, DType.FP16, causal=True)
    assert Shares.of(_DEFAULT, workload).blocks == 1
    bottom = replace(workload, bottom_right=True)
    assert Shares.of(_DEFAULT, bottom).blocks == 16


def test_the_workspace_holds_two_parts_of_each_cta() -> None:
    for device, bytes_wanted in ((DEVICE, 132 * 2 * 8 * 130 * 4), (SMALL, 2 * 2 * 8 * 130 * 4)):
        (launch,) = described(_DEFAULT, _ONE_QUERY, device=device)
        assert launch.workspace_bytes == bytes_wanted


def test_a_cluster_has_a_tile_and_needs_no_memory() -> None:
    config = replace(_DEFAULT, aligned=False, cluster=4)
    (launch,) = described(config, replace(_ONE_QUERY, batch=2))
    assert (launch.grid, launch.cluster) == ((2 * 8 * 4, 1, 1), (4, 1, 1))
    assert launch.workspace_bytes == 0
    assert _FAMILY.plan(config, "ragged", "sm_90").launches[0].counter_bytes == 0
    (name,) = _FAMILY.name_expressions(config, "ragged")
    assert name.startswith("decode_cluster_kernel<")


def test_more_blocks_than_a_kernel_counts_are_refused() -> None:
    workload = Workload(2**20, 8, 8, 1, 2**18, 128, DType.FP16)
    with pytest.raises(InvalidConfig, match="too many blocks of keys"):
        described(_DEFAULT, workload)


def test_a_kernel_of_its_own_combines_in_a_second_launch() -> None:
    config = replace(_DEFAULT, combine=Combine.KERNEL)
    first, second = _FAMILY.name_expressions(config, "ragged")
    assert first.startswith("decode_kernel<")
    assert second == first.replace("decode_", "decode_combine_", 1)
    decode, combine = described(config, _ONE_QUERY)
    assert combine.grid == (128, 8, 1)
    assert combine.block == (32, 1, 1)
    assert decode.params == combine.params


def test_kernels_divide_by_what_the_launch_is_given() -> None:
    workload = replace(_ONE_QUERY, seq_len_q=5)
    pages = {"cache_seqlens": LENGTHS, "page_table": abi.Tensor(64, 32)}
    for page_size, given in ((0, {}), (48, pages)):
        (launch,) = described(_DEFAULT, workload, given, page_size=page_size)
        shares = Shares.of(_DEFAULT, workload, **({"cache_seqlens": LENGTHS} if given else {}))
        tiles = 8 * shares.row_tiles
        numbers = (8, shares.row_tiles, tiles, shares.pitch, tiles * shares.pitch, shares.share)
        found = np.frombuffer(launch.params, np.uint32, 14, len(launch.params) - 60).tolist()
        for number, multiplier, shift in zip(
            (*numbers, page_size), found[::2], found[1::2], strict=True
        ):
            for n in (0, 1, number, number + 1, 2**30 - 1, 2**31 - 1) if number else ():
                assert (2 * n * multiplier >> 32) >> shift == n // number
        assert found[-2:] != [0, 0] or not page_size


def test_it_is_for_few_rows_alone() -> None:
    def suits(
        queries: int, group: int, rows: int = 16, *, batch: int = 80, keys: int = 4096
    ) -> bool:
        workload = Workload(batch, 2 * group, 2, queries, keys, 128, DType.FP16)
        return _FAMILY.suits(workload, replace(_DEFAULT, B_r=rows))

    assert suits(1, 1)
    assert suits(32, 1)
    assert suits(4, 16)
    assert not suits(33, 1)
    assert not suits(1, 16, rows=32)
    assert suits(3, 8, rows=32)
    assert not suits(4096, 8)
    # Few queries.
    assert suits(16, 71, rows=64)
    assert suits(16, 71, keys=16)
    assert not suits(17, 71)
    # Few rows in all, and no short prompt.
    assert suits(160, 8, batch=1)
    assert not suits(161, 8, batch=1)
    assert suits(80, 1, batch=16, keys=320)
    assert not suits(80, 1, batch=16, keys=319)


def test_a_tile_carries_over_to_more_rows_than_it_has_if_both_fill_it() -> None:
    one, several, few = (replace(_ONE_QUERY, seq_len_q=n) for n in (8, 16, 1))
    for rows, filled in ((16, False), (32, False), (64, True), (128, False)):
        config = replace(_DEFAULT, B_r=rows, row_warps=rows // 16, n_warps=8)
        for a, b in ((one, several), (several, one)):
            assert _FAMILY.carries_over(config, a, b) == filled
            assert not _FAMILY.carries_over(config, few, several)
            assert _FAMILY.carries_over(config, a, a)


def test_short_forms_read_back() -> None:
    for text in (
        "decode(BF16, 128, 16, 64, 4): stages_4+ctas_2",
        "decode(FP16, 64, 64, 128, 8):",
        "decode(BF16, 128, 16, 128, 8): dependent+tile_keys_128",
        "decode(BF16, 128, 16, 128, 8): aligned+combine_all",
        "decode(FP16, 256, 64, 32, 8): stages_2+row_warps_4+min_blocks_3+aligned+combine_kernel",
    ):
        assert families.parse(text).short_form() == text
    with pytest.raises(InvalidConfig, match="no decode config in"):
        families.get("decode").parse("(BF16, 128, 16, 64, 4): stages_4")


def test_whole_tiles_carry_over_to_as_many_as_fill_the_gpu() -> None:
    config = replace(_DEFAULT, aligned=False, ctas_per_sm=2, order=TileOrder.WHOLE_ROUNDS)
    many = replace(_ONE_QUERY, batch=64)  # of 8 heads of K and V each
    for batch, served in ((1, False), (32, False), (33, True), (500, True)):
        assert _FAMILY.carries_over(config, many, replace(many, batch=batch)) == served
    assert _FAMILY.carries_over(config, replace(many, batch=4), replace(many, batch=4))
    assert _FAMILY.suits(replace(many, cache_lengths="equal"), config)


def test_kernels_of_e4m3_are_verified_on_keys_and_values_of_it() -> None:
    family = families.get("decode")
    for config in family.configs("e4m3", dtypes=[DType.BF16], d_head=128)[::20]:
        cases = families.verification_cases(families.variant_of(family, config), "ragged")
        assert len(cases) > 8
        assert {family.traits(config, case.workload) for case in cases} == {"ragged"}
