"""The decode family keeps the contract, shares keys evenly, and says in Python what its kernel
asserts."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import pytest

from fa_tune import families
from fa_tune.build import nvrtc
from fa_tune.core.arch import limits
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import DType, Workload
from fa_tune.families.decode.config import Combine, DecodeConfig, KVType
from fa_tune.families.decode.constraints import CONSTRAINTS
from fa_tune.families.decode.launch import Shares, params_dtype
from fa_tune.families.decode.names import parse
from fa_tune.families.decode.sets import FEW_QUADS
from fa_tune.families.launch import LaunchArgs, LaunchDevice, TensorArg
from tests.families.contract import DEVICE, KernelFamilyContract

_FAMILY = families.get("decode")
_DEFAULT: DecodeConfig = _FAMILY.default_config(128, DType.FP16)
OF_DEVICE = "shared memory or threads"
_ONE_QUERY = Workload(16, 64, 8, 1, 8192, 128, DType.FP16)


class TestDecodeContract(KernelFamilyContract):
    name = "decode"
    compute_capability = (9, 0)
    bad_configs = (
        replace(_DEFAULT, d_head=100),
        replace(_DEFAULT, d_head=288),
        replace(_DEFAULT, d_head_v=48),
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
    )

    @pytest.mark.parametrize("arch", [(8, 0), (8, 6), (9, 0), (12, 0)])
    @pytest.mark.parametrize("d_head", [64, 96, 128, 192, 256])
    def test_there_is_a_default_for_every_d_head_and_size_of_shared_memory(
        self, d_head: int, arch: tuple[int, int]
    ) -> None:
        for dtype in DType:
            config = _FAMILY.default_config(d_head, dtype)
            assert (config.dtype, config.d_head) == (dtype, d_head)
            assert _FAMILY.constraints(config, limits(arch)) is None

    def test_each_constraint_is_tried(self) -> None:
        named = {_first_broken(config) for config in self.bad_configs}
        assert named == {name for name, _, _ in CONSTRAINTS} | {OF_DEVICE}

    @pytest.mark.parametrize("name", [name for name, _, _ in CONSTRAINTS])
    def test_the_compiler_refuses_it_with_the_same_sentence(self, name: str) -> None:
        (sentence,) = (text for known, text, _ in CONSTRAINTS if known == name)
        config = next(c for c in self.bad_configs if _first_broken(c) == name)
        source = (
            '#include "decode/constraints.cuh"\n'
            "using namespace fa_tune;\nusing namespace fa_tune::decode;\n"
            f"constexpr DecodeConfig kConfig = {config.to_cpp_struct()};\n"
            "__global__ void kernel() { Constraints<kConfig>(); }\n"
        )
        options = ("-std=c++20", "-arch=sm_90")
        with pytest.raises(nvrtc.CompileError) as caught:
            nvrtc.compile_cubin(source, "k.cu", _FAMILY.source_files(), options, ())
        assert sentence in caught.value.log


def _first_broken(config: DecodeConfig) -> str:
    return next((name for name, _, holds in CONSTRAINTS if not holds(config)), OF_DEVICE)


@pytest.mark.parametrize("batch", [1, 3, 16, 64])
@pytest.mark.parametrize("keys", [1, 1000, 8192, 131072])
@pytest.mark.parametrize("min_blocks", [1, 7])
@pytest.mark.parametrize("aligned", [False, True])
def test_every_block_of_every_tile_is_in_one_share(
    batch: int, keys: int, min_blocks: int, aligned: bool
) -> None:
    workload = replace(_ONE_QUERY, batch=batch, seq_len_kv=keys)
    config = replace(_DEFAULT, min_blocks=min_blocks, aligned=aligned)
    shares = Shares.of(config, workload, 0, DEVICE)
    assert shares.tiles == batch * 8
    assert shares.blocks * config.B_c >= keys > (shares.blocks - 1) * config.B_c
    assert shares.ctas * shares.share >= shares.tiles * shares.pitch
    assert (shares.ctas - 1) * shares.share < shares.tiles * shares.pitch
    even = Shares.of(replace(config, aligned=False), workload, 0, DEVICE)
    assert even.pitch == even.blocks
    assert shares.share <= even.share * 8 / 7
    assert min_blocks > 1 or shares.share >= even.share
    if shares != even:
        assert aligned
        assert shares.pitch % shares.share == 0 or shares.share % shares.pitch == 0
        assert 0 <= shares.pitch - shares.blocks < shares.share, "no part is without keys"
    assert shares.ctas <= DEVICE.multiprocessors * config.ctas_per_sm


@pytest.mark.parametrize(
    "more",
    [
        {"batch": 2**20, "kv_heads": 2**4, "heads": 2**4, "seq_len_kv": 64 * _DEFAULT.B_c},
        {"batch": 2**16, "kv_heads": 2**8, "heads": 2**8, "seq_len_kv": 64 * _DEFAULT.B_c},
        {"batch": 1, "kv_heads": 1, "heads": 2**30, "seq_len_kv": 16 * _DEFAULT.B_c},
        {"batch": 1, "kv_heads": 1, "heads": 1, "seq_len_kv": 2**30 - 1},
    ],
)
@pytest.mark.parametrize("aligned", [False, True])
def test_what_kernels_count_stays_within_32_bits(more: dict[str, int], aligned: bool) -> None:
    """At the limits, one beyond which is refused: places and the end of a CTA's share."""
    config = replace(_DEFAULT, aligned=aligned)
    workload = replace(_ONE_QUERY, **more)
    shares = Shares.of(config, workload, 0, DEVICE)
    assert shares.tiles * shares.pitch + shares.ctas + shares.share < 2**31
    beyond = {"batch": 1 + workload.batch}
    if workload.batch == 1:
        beyond = {"heads": 1 + workload.heads} if workload.heads > 1 else {"seq_len_kv": 2**30}
    with pytest.raises(InvalidConfig, match="a launch takes 1073741824"):
        Shares.of(config, replace(workload, **beyond), 0, DEVICE)


@pytest.mark.parametrize("tile_keys", [0, 64, 1024])
def test_places_of_tiles_stay_within_32_bits_where_the_device_knows_lengths(tile_keys: int) -> None:
    """Whatever the config; a cluster has no places."""
    config = replace(_DEFAULT, aligned=False, B_c=16, n_warps=1, tile_keys=tile_keys)
    at_most = replace(_ONE_QUERY, batch=2**20, kv_heads=2**3, heads=2**3, seq_len_kv=64 * 16)
    beyond = replace(at_most, batch=2**20 + 1)
    shares = Shares.of(config, at_most, 0, DEVICE).on_device(config, at_most)
    places = shares.tiles * (64 + -(-tile_keys // config.B_c))
    assert places + shares.ctas + -(-places // shares.ctas) < 2**31
    with pytest.raises(InvalidConfig, match="a launch takes 1073741824"):
        Shares.of(config, beyond, 0, DEVICE).on_device(config, beyond)
    cluster = replace(config, cluster=2, tile_keys=0)
    Shares.of(cluster, beyond, 0, DEVICE).on_device(cluster, beyond)


def test_rows_are_the_queries_of_a_group_of_heads() -> None:
    workload = replace(_ONE_QUERY, seq_len_q=5)
    for rows, tiles, part_rows in ((16, 3, 16), (32, 2, 32), (64, 1, 40)):
        shares = Shares.of(replace(_DEFAULT, B_r=rows), workload, 0, DEVICE)
        assert (shares.row_tiles, shares.part_rows) == (tiles, part_rows)


def test_a_mask_leaves_out_the_blocks_that_no_query_sees() -> None:
    workload = Workload(1, 8, 1, 2, 1024, 128, DType.FP16, causal=True)
    assert Shares.of(_DEFAULT, workload, workload.diagonal, DEVICE).blocks == 1
    bottom = replace(workload, bottom_right=True)
    assert Shares.of(_DEFAULT, bottom, bottom.diagonal, DEVICE).blocks == 16
    assert Shares.of(_DEFAULT, workload, -5, DEVICE).blocks == 1, "its rows are 0"


def test_the_workspace_holds_two_parts_of_each_cta() -> None:
    assert _FAMILY.workspace_bytes(_DEFAULT, _ONE_QUERY, DEVICE) == 132 * 2 * 8 * 130 * 4
    small = LaunchDevice(multiprocessors=2, l2_bytes=1 << 20)
    assert _FAMILY.workspace_bytes(_DEFAULT, _ONE_QUERY, small) == 2 * 2 * 8 * 130 * 4


def test_a_cluster_has_a_tile_and_needs_no_memory() -> None:
    config = replace(_DEFAULT, aligned=False, cluster=4)
    workload = replace(_ONE_QUERY, batch=2)
    geometry = _FAMILY.geometry(config, workload, DEVICE)
    assert (geometry.grid, geometry.cluster) == ((2 * 8 * 4, 1, 1), (4, 1, 1))
    assert _FAMILY.workspace_bytes(config, workload, DEVICE) == 0
    assert _FAMILY.scratch_bytes(config) == 0
    (spec,) = _FAMILY.kernels(config, "ragged")
    assert spec.name_expression.startswith("decode_cluster_kernel<")


def test_more_blocks_than_a_kernel_counts_are_refused() -> None:
    workload = Workload(2**20, 8, 8, 1, 2**18, 128, DType.FP16)
    with pytest.raises(InvalidConfig, match="a launch takes 1073741824"):
        Shares.of(_DEFAULT, workload, 0, DEVICE)


def test_a_kernel_of_its_own_combines_in_a_second_launch() -> None:
    config = replace(_DEFAULT, combine=Combine.KERNEL)
    first, second = _FAMILY.kernels(config, "ragged")
    assert first.name_expression.startswith("decode_kernel<")
    assert second.name_expression == first.name_expression.replace("decode_", "decode_combine_", 1)
    args = LaunchArgs.forward(*(TensorArg(256 * i, (56, 40, 24)) for i in range(1, 5)))
    decode, combine = _FAMILY.launches(config, _ONE_QUERY, args, DEVICE)
    assert combine.geometry.grid == (128, 8, 1)
    assert combine.geometry.block == (32, 1, 1)
    assert [a.tobytes() for a in decode.args] == [a.tobytes() for a in combine.args]
    assert _FAMILY.scratch_bytes(config) == 0 < _FAMILY.scratch_bytes(_DEFAULT)


def test_parameters_are_as_large_as_the_kernels_struct() -> None:
    cache, scales, score = 32 + 2 * 8 + 2 * 24, 2 * 8 + 2 * 4, 2 * 8 + 4 * 4
    assert params_dtype().itemsize == 7 * 8 + cache + scales + score + 4 * 24 + 13 * 4 + 7 * 8 + 4


def test_it_is_for_few_rows_alone() -> None:
    def suits(queries: int, group: int, rows: int = 16) -> bool:
        workload = Workload(2, 2 * group, 2, queries, 4096, 128, DType.FP16)
        return _FAMILY.suits(workload, replace(_DEFAULT, B_r=rows))

    assert suits(1, 1)
    assert suits(64, 1)
    assert suits(4, 16)
    assert not suits(65, 1)
    assert not suits(1, 16, rows=32)
    assert suits(3, 8, rows=32)
    assert not suits(4096, 8)


@pytest.mark.parametrize(
    ("batch", "kv_heads", "queries", "keys", "words"),
    [
        (1, 8, 1, 128, "stages_2+aligned+dependent+shared_queries"),  # one block
        (1, 8, 1, 300, "stages_2+dependent+cluster_2+shared_queries"),
        # Up to eight tiles: a block for each CTA.
        (1, 8, 1, 1024, "stages_2+dependent+cluster_8+shared_queries"),
        (1, 9, 1, 1024, "stages_2+dependent+cluster_4+shared_queries"),
        (1, 8, 1, 2048, "stages_2+dependent+cluster_8+shared_queries"),
        (1, 8, 1, 4096, "stages_2+cluster_8+shared_queries"),  # no room for 16
        (1, 8, 1, 8192, "cluster_8"),
        (1, 8, 1, 32768, "cluster_8"),
        (2, 8, 1, 4096, "stages_2+aligned+dependent"),  # to begin early is worth more
        (3, 8, 1, 2048, "stages_2+dependent+cluster_4"),
        (4, 8, 1, 8192, "dependent+cluster_2"),
        (5, 8, 1, 3000, "stages_2+aligned+dependent"),
        (8, 8, 1, 3000, "stages_2+dependent+cluster_2"),
        (9, 8, 1, 256, "stages_2+aligned+dependent"),  # no room for 72 of 2
        (9, 8, 1, 1024, "stages_2+ctas_2+cluster_2"),  # but of two CTAs for a multiprocessor
        (12, 8, 4, 16384, "stages_2+row_warps_2+ctas_2+cluster_2"),
        (14, 8, 1, 1024, "stages_2+aligned+dependent"),
        (9, 8, 4, 16384, "stages_2+row_warps_2+aligned+by_rows"),
        (13, 8, 4, 1024, "stages_2+row_warps_2+aligned+dependent+by_rows"),
        (18, 8, 1, 1024, "stages_2+aligned+dependent"),
        (20, 8, 1, 1024, "stages_2+ctas_3+min_blocks_1024+aligned"),
        (31, 8, 1, 4096, "stages_2+ctas_3+min_blocks_1024+aligned"),
        (31, 8, 1, 8192, "stages_2+aligned"),
        (1, 8, 4, 1024, "stages_2+dependent+cluster_4+shared_queries"),  # two tiles of 16 rows
        (1, 8, 4, 8192, "stages_2+row_warps_2+aligned+combine_all+dependent"),
        (1, 8, 4, 32768, "stages_2+row_warps_2+aligned+combine_all+dependent"),
        (1, 8, 8, 1024, "stages_2+dependent+cluster_2+shared_queries"),  # four tiles
        (16, 8, 1, 8192, "stages_2+aligned"),
        (1, 8, 8, 8192, "stages_2+row_warps_2+aligned+combine_all+dependent"),  # two tiles of 32
        (8, 8, 8, 8192, "stages_2+row_warps_4+aligned+dependent+by_rows"),  # one of 64 rows
        (1, 16, 1, 512, "stages_2+dependent+cluster_2+shared_queries"),
        (1, 1, 1, 4096, "stages_2+dependent+cluster_8+shared_queries"),
        (1, 1, 1, 8192, "stages_2+aligned+combine_all+dependent+shared_queries"),
        (1, 2, 1, 8192, "stages_2+aligned+combine_all+dependent+shared_queries"),
        (1, 1, 4, 16384, "stages_2+aligned+combine_all+dependent+shared_queries"),  # of 16 rows
        (1, 1, 4, 32768, "stages_2+row_warps_2+aligned+combine_all+dependent+shared_queries"),
        (1, 1, 4, 8192, "stages_2+aligned+combine_all+dependent+shared_queries"),
        (1, 1, 1, 1024, "stages_2+dependent+cluster_8+shared_queries"),
        (4, 1, 4, 8192, "stages_2+row_warps_2+aligned+combine_all+dependent+shared_queries"),
        (8, 8, 1, 32768, "stages_2+dependent+cluster_2"),  # 64 of 66 that run at a time
        (16, 8, 1, 65536, "stages_2+ctas_2+cluster_2"),  # 128 of 132
        (128, 8, 1, 8192, "stages_2+ctas_2+cluster_2"),
        (133, 8, 1, 8192, "stages_2+ctas_2+aligned"),  # the last 8 of 1064 would be alone
        (128, 8, 4, 8192, "stages_2+row_warps_2+ctas_2+aligned+by_rows"),
        (128, 8, 4, 32768, "stages_2+row_warps_2+ctas_2+cluster_2"),
        (128, 32, 1, 1024, "stages_2+ctas_2+cluster_2"),
        (64, 32, 1, 1024, "stages_2+ctas_4+aligned"),
        (1, 1, 4, 131072, "stages_2+row_warps_2+aligned+combine_all+dependent"),
        (1, 2, 1, 131072, "stages_2+aligned+combine_all+dependent"),
    ],
)
def test_the_default_has_clusters_where_little_is_read(
    batch: int, kv_heads: int, queries: int, keys: int, words: str
) -> None:
    workload = Workload(batch, 8 * kv_heads, kv_heads, queries, keys, 128, DType.BF16)
    h200 = limits((9, 0))
    config: DecodeConfig = _FAMILY.default_for(workload, h200)
    assert str(config).split(": ")[1] == words
    assert _FAMILY.constraints(config, h200) is None
    before_hopper = _FAMILY.default_for(workload, limits((8, 0)))
    assert (before_hopper.cluster, before_hopper.dependent) == (1, False)


@pytest.mark.parametrize(
    ("batch", "kv_heads", "queries", "keys", "words"),
    [
        (1, 8, 1, 2048, "stages_2+dependent+cluster_8+shared_queries"),  # they are alike
        (1, 8, 1, 65536, "stages_2+aligned+dependent"),
        (1, 1, 1, 32768, "stages_2+aligned+combine_all+dependent"),
        (1, 64, 1, 32768, "stages_2+dependent+cluster_2"),
        (2, 1, 1, 32768, "stages_2+aligned+combine_all+dependent"),
        (3, 8, 1, 2048, "stages_2+dependent+cluster_4"),
        (4, 1, 1, 8192, "stages_2+dependent+cluster_8+shared_queries"),
        (3, 8, 1, 8192, "stages_2+aligned+dependent+tile_keys_256"),
        (3, 4, 1, 8192, "stages_2+dependent+cluster_8"),
        (3, 4, 1, 16384, "stages_2+aligned+dependent"),
        (4, 8, 1, 8192, "stages_2+aligned+dependent+tile_keys_256"),
        (8, 8, 1, 2304, "stages_2+dependent+cluster_2"),
        (8, 8, 1, 2305, "stages_2+aligned+dependent+tile_keys_256"),  # one may be much longer
        (16, 8, 1, 1024, "stages_2+ctas_2+cluster_2"),
        (16, 8, 1, 2305, "stages_2+aligned+dependent+tile_keys_256"),
        (24, 8, 1, 1024, "stages_2+ctas_2+aligned+dependent+tile_keys_128"),
        (24, 8, 1, 1025, "stages_2+aligned+dependent+tile_keys_256"),
        (32, 8, 1, 8192, "stages_2+ctas_2+aligned+dependent+tile_keys_128"),
        (64, 8, 1, 8192, "stages_2+ctas_2+aligned+dependent+tile_keys_128"),
        (16, 8, 4, 1024, "stages_2+row_warps_2+ctas_2+cluster_2"),
        (16, 8, 4, 4096, "stages_2+row_warps_2+aligned+dependent+tile_keys_256+by_rows"),
        (32, 8, 4, 1024, "stages_2+row_warps_2+ctas_2+aligned+dependent+tile_keys_128+by_rows"),
    ],
)
def test_the_default_where_the_device_alone_knows_lengths(
    batch: int, kv_heads: int, queries: int, keys: int, words: str
) -> None:
    shape = (batch, 8 * kv_heads, kv_heads, queries, keys)
    workload = Workload(*shape, 128, DType.BF16, cache_lengths="lognormal")
    assert str(_FAMILY.default_for(workload, limits((9, 0)))).split(": ")[1] == words


@pytest.mark.parametrize(
    ("batch", "queries", "keys", "lengths", "ctas"),
    [
        (64, 1, 1024, "", 4),
        (64, 1, 8192, "", 2),
        (64, 4, 1024, "", 4),
        (64, 4, 8192, "", 2),
        (64, 4, 8192, "lognormal", 2),
        (64, 8, 8192, "", 1),
        (64, 1, 8192, "lognormal", 2),
        (32, 1, 1024, "", 2),
        (32, 1, 8192, "", 1),
        (32, 1, 8192, "lognormal", 2),
        (24, 1, 1024, "", 3),
        (24, 4, 1024, "", 1),
    ],
)
def test_ctas_are_small_where_tiles_are_many(
    batch: int, queries: int, keys: int, lengths: str, ctas: int
) -> None:
    workload = Workload(batch, 64, 8, queries, keys, 128, DType.BF16, cache_lengths=lengths)
    config: DecodeConfig = _FAMILY.default_for(workload, limits((9, 0)))
    assert config.ctas_per_sm == ctas


@pytest.mark.parametrize("cache", ["", "lognormal-1-0"])
@pytest.mark.parametrize("batch", [1, 4, 16, 64, 128])
def test_a_window_has_the_default_of_as_many_keys_as_it_leaves(batch: int, cache: str) -> None:
    h200 = limits((9, 0))
    keys = Workload(batch, 32, 8, 1, 1024, 128, DType.BF16, cache_lengths=cache)
    windowed = replace(keys, seq_len_kv=32768, window_left=1023, bottom_right=True)
    assert _FAMILY.default_for(windowed, h200) == _FAMILY.default_for(keys, h200)


@pytest.mark.parametrize(
    ("d_head", "e4m3", "batch", "keys", "ctas", "cluster"),
    [
        (64, False, 12, 512, 1, 1),  # too little for small CTAs
        (64, False, 12, 1024, 2, 2),
        (64, False, 24, 8192, 3, 1),
        (64, False, 24, 8320, 1, 1),  # too much
        (128, True, 12, 1024, 2, 2),
        (128, True, 24, 2048, 1, 1),
    ],
)
def test_small_ctas_are_for_bytes_not_for_keys(
    d_head: int, e4m3: bool, batch: int, keys: int, ctas: int, cluster: int
) -> None:
    workload = Workload(batch, 64, 8, 1, keys, d_head, DType.BF16, kv_e4m3=e4m3)
    config: DecodeConfig = _FAMILY.default_for(workload, limits((9, 0)))
    assert (config.ctas_per_sm, config.cluster) == (ctas, cluster)


def test_the_default_and_the_kernel_agree_on_how_many_parts_are_few() -> None:
    text = _FAMILY.source_files()["decode/together.cuh"]
    assert re.findall(r"kFew = (\d+);", text) == [str(FEW_QUADS)]


@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 9), (9, 0), (12, 0)])
@pytest.mark.parametrize("d_head", [64, 128, 256])
def test_every_default_can_run(capability: tuple[int, int], d_head: int) -> None:
    """Few heads and many, lengths in small steps: with less shared memory tiles are others."""
    for batch, heads, kv_heads, queries in itertools.product(
        (1, 3, 40), (8, 24), (1, 2), (1, 4, 8)
    ):
        for keys in (*range(1, 4000, 371), *range(4096, 50_000, 7001), 131_072):
            shape = (batch, heads, kv_heads, queries, keys)
            workload = Workload(*shape, d_head, DType.BF16)
            for multiprocessors in (16, 132, 400):
                arch = limits(capability, multiprocessors=multiprocessors)
                config = _FAMILY.default_for(workload, arch)
                assert _FAMILY.constraints(config, arch) is None, (shape, config)


@pytest.mark.parametrize("queries", [1, 4])
@pytest.mark.parametrize("keys", [1024, 8192])
@pytest.mark.parametrize("lengths", ["", "lognormal"])
def test_what_counts_are_the_tiles_of_a_multiprocessor(
    queries: int, keys: int, lengths: str
) -> None:
    one, two = (limits((9, 0), multiprocessors=n) for n in (132, 264))
    found = set()
    for batch in range(3, 140):  # tiles of one sequence are alike, and few ones clusters of 8
        workload = Workload(batch, 32, 4, queries, keys, 128, DType.BF16, cache_lengths=lengths)
        config = _FAMILY.default_for(workload, one)
        assert config == _FAMILY.default_for(replace(workload, batch=2 * batch), two)
        found.add(config)
    assert len(found) > 2
    narrow = limits((9, 0), multiprocessors=78)
    same_tiles = [replace(workload, batch=batch) for batch in (24, 48, 72)]
    assert any(_FAMILY.default_for(w, one) != _FAMILY.default_for(w, narrow) for w in same_tiles)


def test_tiles_count_for_keys_where_the_device_alone_knows_lengths() -> None:
    h200 = limits((9, 0))
    cached = replace(_ONE_QUERY, cache_lengths="lognormal")
    config: DecodeConfig = _FAMILY.default_for(cached, h200)
    assert config.tile_keys > 0
    assert _FAMILY.suits(cached, config)
    assert not _FAMILY.suits(_ONE_QUERY, config)
    assert _FAMILY.suits(cached, replace(config, tile_keys=0))
    before, earlier = _FAMILY.former_defaults(config)
    assert (before.tile_keys, before.dependent) == (0, True)
    assert (earlier.tile_keys, earlier.dependent) == (0, False)


@pytest.mark.parametrize(("queries", "stages"), [(1, (2, 3)), (4, (2, 3))])
def test_recordings_hold_the_default_of_larger_rings(queries: int, stages: tuple[int, int]) -> None:
    workload = Workload(64, 64, 8, queries, 1024, 128, DType.BF16)
    config: DecodeConfig = _FAMILY.default_for(workload, limits((9, 0)))
    former, *_ = _FAMILY.former_defaults(config)
    assert (config.stages, former.stages) == stages
    assert (config.by_rows, former.by_rows) == (queries > 1, False)


def test_recordings_hold_the_default_that_did_not_begin_early() -> None:
    config: DecodeConfig = _FAMILY.default_for(replace(_ONE_QUERY, seq_len_kv=1024), limits((9, 0)))
    assert config.dependent
    (former,) = _FAMILY.former_defaults(config)
    assert former == replace(config, dependent=False)
    assert not _FAMILY.former_defaults(former)


@pytest.mark.parametrize(
    ("queries", "keys", "words"),
    [
        (2, 1024, {"stages_2+dependent+cluster_8"}),
        (
            4,
            8192,
            {
                "stages_2+row_warps_2+aligned+combine_all+dependent+by_rows",
                "stages_2+row_warps_2+aligned+dependent+by_rows",
            },
        ),
    ],
)
def test_recordings_hold_the_default_whose_warps_loaded_queries(
    queries: int, keys: int, words: set[str]
) -> None:
    workload = Workload(1, 64, 8, queries, keys, 128, DType.BF16)
    config: DecodeConfig = _FAMILY.default_for(workload, limits((9, 0)))
    former = _FAMILY.former_defaults(config)
    assert words <= {c.short_form().partition(": ")[2] for c in former}
    assert config not in former
    assert not any(c.shared_queries for c in former)


def test_it_is_the_default_of_workloads_that_suit_it_and_of_no_other() -> None:
    h200 = limits((9, 0))
    names = [families.of(c).name for c in families.defaults_for(_ONE_QUERY, h200)]
    assert names[:3] == ["decode", "sm90", "sm80"]
    many = replace(_ONE_QUERY, seq_len_q=4096)
    names = [families.of(c).name for c in families.defaults_for(many, h200)]
    assert names[:2] == ["sm90", "sm80"]
    assert "decode" not in names
    assert families.defaults(128, DType.FP16, h200) == families.defaults_for(many, h200)


def test_short_forms_read_back() -> None:
    for text in (
        "decode(BF16, 128, 16, 64, 4): stages_4+ctas_2",
        "decode(FP16, 64, 64, 128, 8):",
        "decode(BF16, 128, 16, 128, 8): dependent+tile_keys_128",
        "decode(BF16, 128, 16, 128, 8): aligned+combine_all",
        "decode(FP16, 256, 64, 32, 8): stages_2+row_warps_4+min_blocks_3+aligned+combine_kernel",
    ):
        assert parse(text).short_form() == text
    with pytest.raises(InvalidConfig, match="no decode config in"):
        parse("(BF16, 128, 16, 64, 4): stages_4")
