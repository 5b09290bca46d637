"""What the decode family runs where nothing was tuned, and what recordings hold in its place."""

import itertools
import re
import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_tune import families
from fa_tune.core.arch import ArchLimits, limits
from fa_tune.core.devices import limits_of
from fa_tune.core.model import is_reference
from fa_tune.core.workload import DType, Workload
from fa_tune.families.decode.bounds import bounds_of
from fa_tune.families.decode.config import DecodeConfig
from fa_tune.families.decode.defaults import FEW_QUADS, by_rules
from fa_tune.families.former import former_defaults
from fa_tune.families.plan import TileOrder
from fa_tune.lab.default_check import decided_again
from fa_tune.store.recordings import load
from tests.project_files import ROOT

GPUS = ("nvidia_h100_80gb_hbm3", "nvidia_h200")
_FAMILY = families.get("decode")
_ONE_QUERY = Workload(16, 64, 8, 1, 8192, 128, DType.FP16)
H100, H200 = "NVIDIA H100 80GB HBM3", "NVIDIA H200"


def _by_rules(workload: Workload, arch: ArchLimits) -> DecodeConfig:
    return by_rules(workload, arch, bounds_of(arch.compute_capability))


@pytest.mark.parametrize(
    ("batch", "kv_heads", "queries", "keys", "words"),
    [
        (1, 8, 1, 128, "stages_2+aligned+dependent+shared_queries"),  # one block
        (1, 8, 1, 300, "stages_2+dependent+cluster_4+shared_queries"),
        # Few tiles: a block for each CTA.
        (1, 8, 1, 1024, "stages_2+dependent+cluster_8+shared_queries"),
        (1, 8, 1, 4096, "stages_2+cluster_8+shared_queries"),  # no room for 16
        (1, 8, 1, 8192, "cluster_8"),
        (2, 8, 1, 4096, "stages_2+aligned+dependent"),  # to begin early is worth more
        (4, 8, 1, 8192, "dependent+cluster_2"),
        (8, 8, 1, 3000, "stages_2+dependent+cluster_2"),
        # No room for 72 clusters of 2, but of two CTAs for a multiprocessor.
        (9, 8, 1, 256, "stages_2+ctas_2+cluster_2"),
        (9, 8, 1, 1024, "stages_2+ctas_2+cluster_2"),
        (12, 8, 4, 16384, "stages_2+row_warps_2+ctas_2+cluster_2"),
        (9, 8, 4, 16384, "stages_2+row_warps_2+aligned+by_rows"),
        (13, 8, 4, 1024, "stages_2+row_warps_2+aligned+dependent+by_rows+shared_queries"),
        (20, 8, 1, 1024, "stages_2+ctas_3+min_blocks_1024+aligned"),
        (31, 8, 1, 8192, "stages_2+aligned"),
        (1, 8, 4, 1024, "stages_2+dependent+cluster_4+shared_queries"),  # two tiles of 16 rows
        (1, 8, 4, 8192, "stages_2+row_warps_2+aligned+combine_all+dependent+shared_queries"),
        (1, 8, 8, 1024, "stages_2+dependent+cluster_2+shared_queries"),  # four tiles
        (16, 8, 1, 8192, "stages_2+aligned"),
        # two tiles of 32 rows
        (1, 8, 8, 8192, "stages_2+row_warps_2+aligned+combine_all+dependent+shared_queries"),
        (8, 8, 8, 8192, "stages_2+row_warps_4+aligned+dependent+by_rows"),  # one of 64 rows
        (1, 1, 1, 8192, "stages_2+aligned+combine_all+dependent+shared_queries"),
        (1, 1, 4, 16384, "stages_2+aligned+combine_all+dependent+shared_queries"),  # of 16 rows
        (8, 8, 1, 32768, "stages_2+dependent+cluster_2"),  # 64 of 66 that run at a time
        (16, 8, 1, 65536, "stages_2+ctas_2+cluster_2"),  # 128 of 132
        (133, 8, 1, 8192, "stages_2+ctas_4+aligned"),  # the last 8 of 1064 would be alone
        # 800 for 528 small CTAs: shares would be parts of two or three.
        (100, 8, 1, 700, "stages_2+ctas_3+min_blocks_1024+aligned"),
        (100, 8, 1, 4096, "dependent+cluster_2"),
        (128, 8, 4, 8192, "stages_2+row_warps_2+ctas_2+cluster_2"),
        (128, 32, 1, 1024, "stages_2+ctas_2+cluster_2"),
        (64, 32, 1, 1024, "stages_2+ctas_4+aligned"),
        (1, 2, 1, 131072, "stages_2+aligned+combine_all+dependent"),
    ],
)
def test_rules_find_clusters_where_little_is_read(
    batch: int, kv_heads: int, queries: int, keys: int, words: str
) -> None:
    workload = Workload(batch, 8 * kv_heads, kv_heads, queries, keys, 128, DType.BF16)
    h200 = limits((9, 0))
    config = _by_rules(workload, h200)
    assert str(config).split(": ")[1] == words
    assert _FAMILY.constraints(config, h200) is None
    before_hopper = _by_rules(workload, limits((8, 0)))
    assert (before_hopper.cluster, before_hopper.dependent) == (1, False)


@pytest.mark.parametrize(
    ("batch", "kv_heads", "queries", "keys", "words"),
    [
        (1, 8, 1, 65536, "cluster_8"),
        (1, 8, 1, 131072, "stages_2+aligned+dependent"),
        (1, 1, 1, 32768, "stages_2+aligned+combine_all+dependent+shared_queries"),
        (1, 1, 1, 65536, "stages_2+aligned+combine_all+dependent"),
        (4, 1, 1, 8192, "stages_2+dependent+cluster_8+shared_queries"),
        (3, 8, 1, 8192, "stages_2+aligned+dependent+tile_keys_256"),
        (3, 4, 1, 8192, "stages_2+dependent+cluster_8"),
        (8, 8, 1, 2304, "stages_2+dependent+cluster_2"),
        (8, 8, 1, 2305, "stages_2+aligned+dependent+tile_keys_256"),  # one may be much longer
        (16, 8, 1, 1024, "stages_2+ctas_2+cluster_2"),
        (16, 8, 1, 2305, "stages_2+aligned+dependent+tile_keys_256"),
        (24, 8, 1, 1024, "stages_2+ctas_2+aligned+dependent+tile_keys_128"),
        (24, 8, 1, 1025, "stages_2+aligned+dependent+tile_keys_256"),
        (32, 8, 1, 8192, "stages_2+ctas_2+aligned+dependent+tile_keys_128"),
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
    ("batch", "keys", "d_head", "e4m3", "ctas"),
    [
        (17, 512, 128, False, 2),
        (33, 512, 128, False, 2),  # 264 tiles: two for each multiprocessor
        (34, 512, 128, False, 3),
        (16, 512, 128, False, 0),  # fewer tiles than multiprocessors
        (34, 513, 128, False, 0),
        (34, 1024, 128, True, 3),
        (83, 1024, 128, False, 3),  # 5.03 tiles for each
        (82, 1024, 128, False, 0),
        (83, 512, 256, False, 3),
        (83, 513, 256, False, 0),
        (83, 1024, 64, False, 3),
        (83, 1025, 64, True, 0),
    ],
)
@pytest.mark.parametrize("lengths", ["equal", "uniform-0", "lognormal"])
def test_short_tiles_of_a_cache_have_a_cta_each(
    batch: int, keys: int, d_head: int, e4m3: bool, ctas: int, lengths: str
) -> None:
    shape = (batch, 32, 8, 1, keys, d_head)
    workload = Workload(*shape, DType.BF16, cache_lengths=lengths, kv_e4m3=e4m3)
    config: DecodeConfig = _FAMILY.default_for(workload, limits((9, 0)))
    if ctas == 0:
        assert config == _by_rules(workload, limits((9, 0)))
    else:
        found = (config.order, config.ctas_per_sm, config.dependent, config.tile_keys)
        assert found == (TileOrder.CTA_PER_TILE, ctas, True, 0)
        assert _FAMILY.suits(workload, config)


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
        (64, False, 12, 128, 1, 1),  # too little for small CTAs
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
    config = _by_rules(workload, limits((9, 0)))
    assert (config.ctas_per_sm, config.cluster) == (ctas, cluster)


def test_the_default_and_the_kernel_agree_on_how_many_parts_are_few() -> None:
    text = _FAMILY.source_files()["decode/together.cuh"]
    assert re.findall(r"kFew = (\d+);", text) == [str(FEW_QUADS)]


@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 9), (9, 0), (12, 0)])
@pytest.mark.parametrize("d_head", [64, 128, 256])
def test_every_default_can_run(capability: tuple[int, int], d_head: int) -> None:
    """Few heads and many, short and long: with less shared memory tiles are others."""
    for batch, heads, kv_heads, queries in itertools.product(
        (1, 3, 40), (8, 24), (1, 2), (1, 4, 8)
    ):
        for keys in (*range(1, 4000, 743), *range(4096, 50_000, 14_003), 131_072):
            shape = (batch, heads, kv_heads, queries, keys)
            workload = Workload(*shape, d_head, DType.BF16)
            for multiprocessors in (16, 132, 400):
                arch = limits(capability, multiprocessors=multiprocessors)
                config = _FAMILY.default_for(workload, arch)
                assert _FAMILY.constraints(config, arch) is None, (shape, config)


@given(
    st.integers(1, 70),
    st.integers(1, 12),
    st.integers(1, 71),
    st.integers(1, 200),
    st.integers(1, 1 << 17),
    st.sampled_from((64, 96, 128, 256)),
    st.sampled_from(("", "equal")),
)
def test_the_default_of_any_rows_has_no_larger_a_tile_than_they_need(
    batch: int, kv_heads: int, group: int, queries: int, keys: int, d_head: int, lengths: str
) -> None:
    """And where rows are several tiles, no smaller a one than of such tiles that are as many."""
    w = Workload(
        *(batch, kv_heads * group, kv_heads, queries, keys, d_head, DType.BF16),
        cache_lengths=lengths,
    )
    arch = limits((9, 0), gpu=H200)
    config: DecodeConfig = _FAMILY.default_for(w, arch)
    assert _FAMILY.constraints(config, arch) is None
    assert config.B_r == 16 or config.B_r < 2 * w.rows_of_kv_head
    number, rows = w.row_tiles
    assert number * rows >= w.rows_of_kv_head > (number - 1) * rows
    if number > 1:
        one_each = replace(w, heads=rows * number * kv_heads, kv_heads=number * kv_heads)
        one_each = replace(one_each, seq_len_q=1)
        assert config.B_r >= _FAMILY.default_for(one_each, arch).B_r


@given(
    st.integers(1, 128),
    st.integers(1, 8),
    st.integers(1, 71),
    st.integers(1, 16),
    st.sampled_from((64, 128, 256)),
    st.sampled_from(("", "equal")),
    st.booleans(),
    st.sampled_from((H100, H200, "another")),
)
def test_the_largest_tile_takes_the_place_of_two_on_a_busy_device(
    batch: int,
    kv_heads: int,
    group: int,
    queries: int,
    d_head: int,
    lengths: str,
    e4m3: bool,
    gpu: str,
) -> None:
    w = Workload(
        *(batch, kv_heads * group, kv_heads, queries, 8192, d_head, DType.BF16),
        cache_lengths=lengths,
        kv_e4m3=e4m3,
    )
    config: DecodeConfig = _FAMILY.default_for(w, limits((9, 0), gpu=gpu))
    if config.B_r > 64:
        assert (config.d_head, config.d_v, config.kv_bytes) == (128, 128, 2)
        tiles, usual = (-(-w.rows_of_kv_head // rows) for rows in (config.B_r, 64))
        assert batch * kv_heads * tiles >= 0.8 * 132
        assert usual > 1.7 * tiles


@pytest.mark.parametrize(
    ("batch", "kv_heads", "group", "queries", "rows"),
    [
        (64, 2, 16, 8, 128),
        (64, 8, 8, 16, 128),
        (64, 8, 15, 16, 128),  # 240 rows
        (64, 8, 8, 8, 64),
        (64, 8, 9, 8, 128),  # 72 rows
        (64, 8, 10, 13, 64),  # 130
        (8, 8, 8, 16, 64),  # 64 tiles
        (8, 8, 16, 16, 128),
    ],
)
def test_large_tiles_read_keys_half_as_often(
    batch: int, kv_heads: int, group: int, queries: int, rows: int
) -> None:
    w = Workload(batch, group * kv_heads, kv_heads, queries, 8192, 128, DType.BF16)
    assert _FAMILY.default_for(w, limits((9, 0))).B_r == rows
    assert _FAMILY.default_for(w, limits((8, 0))).B_r < 128, "not measured"
    fast = _FAMILY.configs("fast", dtypes=(DType.BF16,))
    assert _FAMILY.default_for(w, limits((9, 0))) in fast


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
    before, earlier = former_defaults(_FAMILY, config)
    assert (before.tile_keys, before.dependent) == (0, True)
    assert (earlier.tile_keys, earlier.dependent) == (0, False)


@pytest.mark.parametrize(("queries", "stages"), [(1, (2, 3)), (4, (2, 3))])
def test_recordings_hold_the_default_of_larger_rings(queries: int, stages: tuple[int, int]) -> None:
    workload = Workload(64, 64, 8, queries, 1024, 128, DType.BF16)
    config: DecodeConfig = _FAMILY.default_for(workload, limits((9, 0)))
    former, *_ = former_defaults(_FAMILY, config)
    assert (config.stages, former.stages) == stages
    assert (config.by_rows, former.by_rows) == (queries > 1, False)


def test_recordings_hold_the_default_that_did_not_begin_early() -> None:
    config: DecodeConfig = _FAMILY.default_for(replace(_ONE_QUERY, seq_len_kv=1024), limits((9, 0)))
    assert config.dependent
    (former,) = former_defaults(_FAMILY, config)
    assert former == replace(config, dependent=False)
    assert not former_defaults(_FAMILY, former)


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
    former = former_defaults(_FAMILY, config)
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


@pytest.mark.parametrize(
    ("batch", "kv_heads", "rows", "keys", "d_head", "d_head_v", "words"),
    [
        (1, 8, 2, 1024, 256, 0, "stages_2+dependent+cluster_8"),
        (4, 8, 2, 1024, 256, 0, "stages_2+dependent+cluster_2"),
        (16, 8, 2, 1024, 256, 0, "stages_2+aligned+dependent"),
        (2, 8, 16, 1024, 256, 0, "stages_2+dependent+cluster_4"),
        (1, 8, 2, 32768, 256, 0, "stages_2+aligned+dependent"),
        (1, 16, 1, 1024, 192, 128, "d_head_v_128+dependent+cluster_4"),
        (4, 16, 1, 8192, 192, 128, "aligned+d_head_v_128"),
        # Not measured.
        (1, 16, 1, 1024, 192, 0, "stages_2+aligned+dependent"),
        (1, 8, 32, 1024, 256, 0, "stages_2+row_warps_2+aligned+combine_all+dependent"),
    ],
)
def test_large_heads_have_clusters_where_they_were_measured(
    batch: int, kv_heads: int, rows: int, keys: int, d_head: int, d_head_v: int, words: str
) -> None:
    shape = (batch, rows * kv_heads, kv_heads, 1, keys, d_head)
    workload = Workload(*shape, DType.BF16, d_head_v=d_head_v)
    for gpu in (H100, H200):
        config = _FAMILY.default_for(workload, limits((9, 0), gpu=gpu))
        assert str(config).partition("): ")[2] == words


@pytest.mark.parametrize("rows", [1, 8, 16, 32, 64, 80, 512, 4096])
@pytest.mark.parametrize("lengths", ["", "lognormal"])
@pytest.mark.parametrize(
    ("d_head", "d_head_v", "e4m3"),
    [
        *((d_head, 0, e4m3) for d_head in (64, 128, 256) for e4m3 in (False, True)),
        (192, 128, False),
    ],
)
def test_clusters_of_all_tiles_run_at_a_time_unless_there_are_many(
    rows: int, lengths: str, d_head: int, d_head_v: int, e4m3: bool
) -> None:
    """With fewer than three tiles for a multiprocessor none waits for another; of 132
    multiprocessors 10 in 11 have neighbours for clusters of 4 and 8."""
    arch = limits((9, 0), gpu=H200)
    for kv_heads, keys in itertools.product(
        (1, 3, 8, 12, 17, 40, 48, 67, 88, 100, 130, 200, 350), (200, 1024, 3000, 8192, 32768)
    ):
        workload = Workload(
            *(1 if not lengths else 2, rows * kv_heads, kv_heads, 1, keys, d_head, DType.BF16),
            d_head_v=d_head_v,
            kv_e4m3=e4m3,
            cache_lengths=lengths,
        )
        config: DecodeConfig = _FAMILY.default_for(workload, arch)
        tiles = workload.batch * kv_heads * -(-rows // config.B_r)
        if config.cluster == 1 or tiles >= 3 * 132:
            continue
        neighbours = 132 if config.cluster == 2 else 120
        assert tiles * config.cluster <= neighbours * config.ctas_per_sm, (workload, config)


def _losses(folder: Path) -> Iterator[float]:
    """What rules lose against the fastest config of each recorded problem whose lengths the host
    knew, where theirs was measured."""
    for path in sorted(folder.glob("decode_*_events*.csv")):
        recording = load(path)
        device = limits_of(recording.meta.device)
        for found in decided_again(recording):
            if found.workload.cached:
                continue
            told = {s.subject: s.to_chosen.value for s in found.decision.standings}
            own = {subject: ratio for subject, ratio in told.items() if not is_reference(subject)}
            default = families.variant(_by_rules(found.workload, device)).key
            if default in own:
                yield own[default] / min(own.values()) - 1.0


@pytest.mark.parametrize(
    ("folder", "problems", "mean", "most"),
    [
        *(("profiles/" + gpu, 147, 0.01, 0.06) for gpu in GPUS),
        *(("benchmarks/decode_other_heads/" + gpu, 43, 0.015, 0.12) for gpu in GPUS),
        ("benchmarks/decode_between/nvidia_h200", 21, 0.03, 0.12),
    ],
)
def test_rules_find_what_is_near_the_fastest_that_was_recorded(
    folder: str, problems: int, mean: float, most: float
) -> None:
    losses = list(_losses(ROOT / folder))
    assert len(losses) >= problems
    assert statistics.fmean(losses) < mean
    assert max(losses) < most
