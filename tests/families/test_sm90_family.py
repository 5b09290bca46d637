"""The sm90 family keeps the contract, and says in Python what its kernel asserts."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from fa_tune import families
from fa_tune.build import nvrtc
from fa_tune.build.cache import ArtifactStore
from fa_tune.build.compile import BuildRequest, build
from fa_tune.core.arch import limits
from fa_tune.core.workload import DType, Workload, benchmark_workload
from fa_tune.families.sm90 import defaults
from fa_tune.families.sm90.config import Rescale, Scheduler, Sm90Config
from fa_tune.families.sm90.constraints import CONSTRAINTS, constraints
from fa_tune.families.sm90.defaults import TILES, default_config
from fa_tune.families.sm90.sets import get_configs
from tests.described import DEVICE, described
from tests.families.contract import WORKLOADS, SaidContract
from tests.project_files import ROOT
from tests.tools.proven import due, passed

H200 = limits((9, 0))
DEFAULT = replace(default_config(128, DType.FP16), rows_in_turn=False, adaptive_max=False)
SINGLE = replace(DEFAULT, q_stages=1, cross_tile_overlap=False, scheduler=Scheduler.SINGLE)
SERIAL = replace(SINGLE, overlap=False, pingpong=False)


class TestSm90Contract(SaidContract):
    name = "sm90"
    rules = CONSTRAINTS
    folder = "sm90/fwd"
    computed = ("registers_fit", "wgmma_fits_at_entry", "smem_fits")
    compute_capability = (9, 0)
    refusing = ((8, 0), (8, 6), (8, 9), (10, 0), (12, 0))
    bad_configs = (
        replace(DEFAULT, d_head=76),
        replace(DEFAULT, d_head=320),
        replace(DEFAULT, d_head_v=8),
        replace(DEFAULT, d_head_v=272),
        replace(DEFAULT, mma_warpgroups=0),
        replace(DEFAULT, mma_warpgroups=5),
        replace(DEFAULT, B_c=120),
        replace(DEFAULT, B_c=272),
        replace(DEFAULT, stages=0),
        replace(DEFAULT, q_stages=3),
        replace(DEFAULT, mma_warpgroups=1),
        replace(DEFAULT, scheduler=Scheduler.SINGLE),
        replace(SINGLE, q_stages=2),
        replace(DEFAULT, mma_warpgroups=3),
        replace(DEFAULT, stages=3),
        replace(DEFAULT, min_ctas_per_sm=2, d_head=64, mma_warpgroups=3, B_c=64),
        replace(DEFAULT, min_ctas_per_sm=2),
        replace(DEFAULT, rescale=Rescale.THRESHOLDED, single_loop=True),
        replace(DEFAULT, rescale=Rescale.THRESHOLDED, rows_in_turn=True),
        replace(DEFAULT, d_head=64, mma_warpgroups=3, rows_in_turn=True),
        replace(DEFAULT, rescale=Rescale.THRESHOLDED, adaptive_max=True),
        replace(SINGLE, rescale=Rescale.WATCHED_MAX),
        replace(SINGLE, splits=0),
        replace(SINGLE, splits=9),
        replace(DEFAULT, splits=2),
        replace(SINGLE, splits=2, stages=1, B_c=64),
        replace(DEFAULT, min_ctas_per_sm=2, d_head=256, mma_warpgroups=1, pingpong=False, B_c=16),
    )


def test_shared_memory_is_the_kernels_own_sum() -> None:
    """The kernel's plan, SharedMemory<CFG>, for configs that differ in every term."""
    configs = [
        DEFAULT,
        SERIAL,
        replace(SINGLE, stages=1, B_c=176),
        replace(DEFAULT, scheduler=Scheduler.STATIC),
        replace(DEFAULT, d_head=64, mma_warpgroups=1, min_ctas_per_sm=2),
        default_config(64, DType.BF16),
        default_config(40, DType.BF16),
        default_config(256, DType.FP16),
        replace(DEFAULT, d_head=64, mma_warpgroups=3, rescale=Rescale.WATCHED_MAX),
        replace(DEFAULT, d_head=192, d_head_v=80),
        replace(DEFAULT, d_head=80, d_head_v=192),
    ]
    asserts = "\n".join(
        f"static_assert(sizeof(SharedMemory<{c.to_cpp_struct()}>) == {c.smem_bytes}, "
        f'"{c.short_form()}");'
        for c in configs
    )
    using = "using namespace fa_tune;\nusing namespace fa_tune::sm90;"
    source = f'#include "sm90/fwd/shared_memory.cuh"\n{using}\n{asserts}\n'
    files, options = families.get("sm90").source_files(), ("-std=c++20", "-arch=sm_90a")
    nvrtc.compile_source(source, "k.cu", files, options, ())


# Head dimensions of Q and K, and of V.
PAIRS = (
    *((192, 128), (128, 64), (64, 128), (64, 256), (256, 64), (96, 192), (160, 96), (80, 16)),
    *((40, 64), (48, 128), (56, 32)),
)


@pytest.mark.parametrize("pair", PAIRS[:3])
def test_defaults_with_other_values_compile_without_spills_or_serialised_products(
    pair: tuple[int, int], artifacts: ArtifactStore
) -> None:
    config = default_config(pair[0], DType.BF16, d_head_v=pair[1])
    request = BuildRequest(families.variant(config), "causal+ragged+lse", "sm_90a")
    (result,) = build([request], artifacts)
    assert result.artifact is not None, result.reason
    assert not result.artifact.diagnostics
    assert result.artifact.resources.spill_store_bytes == 0


@pytest.mark.parametrize("pair", PAIRS)
def test_sets_for_values_of_another_head_dimension(pair: tuple[int, int]) -> None:
    d_head, d_head_v = pair
    for key in ("fast", "tune"):
        configs = get_configs(key, dtypes=[DType.FP16], d_head=d_head, d_head_v=d_head_v)
        assert default_config(d_head, DType.FP16, d_head_v=d_head_v) in configs
        assert {(c.d_head, c.d_v) for c in configs} == {pair}
        assert len(set(configs)) == len(configs)
    fast = get_configs("fast", dtypes=[DType.FP16], d_head=d_head, d_head_v=d_head_v)
    assert [c for c in fast if constraints(c, H200) is not None] == []


def test_a_head_dimension_of_values_that_says_nothing_is_left_out() -> None:
    assert replace(DEFAULT, d_head_v=128) == DEFAULT
    assert get_configs("fast", d_head=128, d_head_v=128) == get_configs("fast", d_head=128)
    assert get_configs("tune", d_head=64, d_head_v=64) == get_configs("tune", d_head=64)
    assert get_configs("fast", d_head=128, d_head_v=28) == []


@pytest.mark.all_kernels
def test_the_fast_set_compiles_without_serialised_products_or_spills(
    artifacts: ArtifactStore,
) -> None:
    """Each config once, with every trait, which takes the most registers."""
    configs = [
        config
        for d_head in TILES
        for config in get_configs("fast", dtypes=[DType.FP16], d_head=d_head)
    ]
    assert [c for c in configs if constraints(c, H200) is not None] == []
    requests = [BuildRequest(families.variant(c), "causal+ragged+lse", "sm_90a") for c in configs]
    few = requests[::30]  # tiles that differ
    for result in build(due("sm90 fast", requests, few), artifacts):
        assert result.artifact is not None, result.reason
        assert not result.artifact.diagnostics, result.request
        resources = result.artifact.resources
        assert resources.spill_load_bytes == resources.spill_store_bytes == 0, result.request
    passed("sm90 fast", requests)


@pytest.mark.parametrize("d_head", [32, 40, 56, *sorted(TILES), 72, 88, 144, 160, 240])
def test_the_fast_set_is_small_and_holds_the_default(d_head: int) -> None:
    for dtype in DType:
        configs = get_configs("fast", dtypes=[dtype], d_head=d_head)
        assert default_config(d_head, dtype) in configs
        assert len(set(configs)) == len(configs)
        large = Workload(16, 16, 16, 4096, 4096, d_head, dtype)
        assert len(families.worth_trying(configs, large)) <= 16
        assert {c.dtype for c in configs} == {dtype}
        assert {c.d_head for c in configs} == {d_head}


def _measured() -> list[tuple[Workload, str, dict[str, float]]]:
    """Speeds of tiles with d_head 64, by their names, of each workload and kind of inputs."""
    found = []
    for line in (ROOT / "benchmarks/tiles_h200.txt").read_text().splitlines():
        words = line.split()
        if "_d64_" in line and "usual" in words:
            speeds = dict(zip(words[3::2], map(float, words[4::2]), strict=True))
            found.append((Workload.from_key(words[0]), words[1], speeds))
    return found


def _name(config: Sm90Config) -> str:
    if config.mma_warpgroups == 4:
        watched = config.rescale is Rescale.WATCHED_MAX
        return "wide_wa" if watched else "wide_ad" if config.adaptive_max else "wide_sl"
    return "small" if config.mma_warpgroups == 1 else "usual"


def test_default_tiles_are_near_the_fastest_that_were_measured() -> None:
    measured = _measured()
    assert len(measured) > 50
    for workload, inputs, speeds in measured:
        cudnn = speeds.pop("cudnn")
        speed = speeds[_name(defaults.default_for(workload))]
        assert speed >= 0.93 * max(speeds.values()), (workload.key, inputs)
        if inputs == "normal":
            assert speed > cudnn, workload.key


@pytest.mark.parametrize("d_head", [32, 40, 48, 56, 64, 72, 80, 128])
@pytest.mark.parametrize("causal", [False, True])
def test_default_tiles_run_and_are_of_the_fast_set(d_head: int, causal: bool) -> None:
    for dtype, length, batch in itertools.product(DType, (16, 197, 257, 512, 1024, 4096), (1, 64)):
        workload = Workload(batch, 16, 16, length, length, d_head, dtype, causal=causal)
        found = defaults.default_for(workload)
        assert constraints(found, H200) is None
        assert _stale(found) in get_configs("fast", dtypes=[dtype], d_head=d_head)
        assert defaults.default_for(replace(workload, lengths="equal")) == found


@pytest.mark.parametrize("d_head", [64, 128])
def test_sinks_and_long_sequences_have_the_usual_tile(d_head: int) -> None:
    plain = Workload(16, 16, 16, 512, 512, d_head, DType.BF16)
    packed = replace(plain, seq_len_q=4096, seq_len_kv=4096, lengths="uniform-1")
    others = (replace(plain, sink=True), packed)
    assert {defaults.default_for(w) for w in others} == {default_config(d_head, DType.BF16)}


@pytest.mark.parametrize("d_head", [48, 64, 96, 128, 256])
def test_short_sequences_of_a_packed_batch_have_tiles_of_few_rows(d_head: int) -> None:
    short = Workload(64, 16, 16, 60, 60, d_head, DType.BF16, lengths="uniform-1")
    assert defaults.default_for(short).B_r == 64


def _stale(config: Sm90Config) -> Sm90Config:
    return replace(config, rescale=Rescale.STALE_MAX)


@pytest.mark.parametrize("d_head", [40, 64, 128])
def test_maxima_are_watched_in_fp16_where_keys_may_be_far_above_others(d_head: int) -> None:
    full = Workload(4, 16, 16, 4096, 4096, d_head, DType.FP16)
    for workload in (full, replace(full, causal=True)):
        watched = defaults.default_for(workload)
        assert watched.rescale is Rescale.WATCHED_MAX
        assert watched in get_configs("tune", dtypes=[DType.FP16], d_head=d_head)
        assert constraints(watched, H200) is None
    others = (
        replace(full, causal=True, seq_len_q=512, seq_len_kv=512),
        replace(full, window_left=1000),
        replace(full, sink=True),
        replace(full, dtype=DType.BF16),
    )
    assert {defaults.default_for(w).rescale for w in others} == {Rescale.STALE_MAX}


def test_a_config_that_is_exact_is_the_nearest() -> None:
    default = default_config(128, DType.FP16)
    assert not default.exact
    exact = default.as_exact()
    assert exact.exact
    assert exact == exact.as_exact()
    assert exact == replace(default, rescale=Rescale.EXACT_MAX, adaptive_max=False)
    assert constraints(exact, H200) is None


def test_narrow_windows_have_small_tiles_with_d_head_64() -> None:
    narrow = Workload(2, 64, 8, 4096, 4096, 64, DType.BF16, causal=True, window_left=1023)
    small, usual = defaults.default_for(narrow), default_config(64, DType.BF16)
    assert small.B_r < usual.B_r
    assert small in get_configs("fast", dtypes=[DType.BF16], d_head=64)
    assert constraints(small, H200) is None
    alike = (
        replace(narrow, sink=True),
        replace(narrow, window_left=127),
        replace(narrow, causal=False, window_left=500, window_right=500),
    )
    assert {defaults.default_for(w) for w in alike} == {small}
    others = (
        replace(narrow, window_left=4000),
        replace(narrow, causal=False),  # sees all keys behind it
        replace(narrow, softcap=30.0),
        replace(narrow, alibi=True),
        replace(narrow, lengths="uniform-1"),
    )
    assert {defaults.default_for(w) for w in others} == {usual}
    assert defaults.default_for(replace(narrow, d_head=128)) == default_config(128, DType.BF16)


@pytest.mark.parametrize("dtype", [DType.FP16, DType.BF16])
def test_d_head_256_has_a_default_of_its_own_without_windows_and_the_like(dtype: DType) -> None:
    causal = Workload(2, 16, 16, 4096, 4096, 256, dtype, causal=True)
    usual = default_config(256, dtype)
    plain = defaults.default_for(causal)
    assert plain != usual
    assert plain in get_configs("fast", dtypes=[dtype], d_head=256)
    assert constraints(plain, H200) is None
    assert {defaults.default_for(w) for w in (causal, replace(causal, causal=False))} == {plain}
    others = (
        replace(causal, softcap=50.0),
        replace(causal, window_left=1023),
    )
    assert {defaults.default_for(w) for w in others} == {usual}


@pytest.mark.parametrize("d_head", [24, 76, 272, 512])
def test_a_d_head_without_tiles_has_no_sets_and_one_reason(d_head: int) -> None:
    assert [get_configs(key, d_head=d_head) for key in ("fast", "tune", "prog", "all")] == [[]] * 4
    rejected = constraints(default_config(d_head, DType.BF16), H200)
    assert rejected is not None
    assert rejected.constraint == "d_head_fits_a_wgmma"


def test_registers_are_counted_as_the_accumulators_take_them() -> None:
    assert DEFAULT.operand_registers == 64 + 64 + 32
    assert all(
        c.operand_registers <= c.register_budget
        for d in TILES
        for c in get_configs("all", d_head=d)
    )


# Launch -----------------------------------------------------------------------------------------


def grid(config: Sm90Config, workload: Workload, multiprocessors: int = 132) -> int:
    device = replace(DEVICE, multiprocessors=multiprocessors)
    return described(config, workload, device=device)[0].grid[0]


def test_a_persistent_grid_is_no_larger_than_the_device_or_the_work() -> None:
    much, little = benchmark_workload(4096, 128, DType.FP16), WORKLOADS[0]
    assert [grid(DEFAULT, much, n) for n in (114, 132)] == [114, 132]
    assert grid(DEFAULT, little) == 2 * 6 * 4
    assert grid(SINGLE, much) == 16 * 16 * 32


def test_several_ctas_share_a_multiprocessor() -> None:
    config = replace(
        DEFAULT, d_head=64, mma_warpgroups=1, pingpong=False, B_c=96, min_ctas_per_sm=3
    )
    assert constraints(config, H200) is None
    assert grid(config, benchmark_workload(4096, 64, DType.FP16)) == 3 * 132
    assert constraints(replace(config, stages=4), H200) is not None, "no room for three"
    assert constraints(replace(config, stages=4, min_ctas_per_sm=1), H200) is None


def test_boxes_are_a_warpgroups_rows_and_a_block_of_keys() -> None:
    (launch,) = described(DEFAULT, Workload(2, 6, 3, 500, 700, 128, DType.FP16))
    assert [tensor.box_rows for tensor in launch.maps] == [64, 128, 128, 64]


def test_persistent_kernels_are_verified_over_several_rounds() -> None:
    family = families.get("sm90")
    for traits in ("plain", "causal+ragged+lse"):
        (workload,) = family.extra_verification(DEFAULT, traits)
        tiles = -(-workload.seq_len_q // DEFAULT.B_r) * workload.heads * workload.batch
        assert tiles > 2 * 132
        assert family.traits(DEFAULT, workload) == traits


def test_a_last_tile_with_few_queries_needs_no_other_kernel() -> None:
    family = families.get("sm90")
    for config in (SINGLE, DEFAULT):
        for traits in ("plain", "causal", "ragged"):
            (workload,) = family.extra_verification(config, traits)
            assert workload.seq_len_q % config.B_r
            assert family.traits(config, workload) == traits
            plan = family.plan(config, traits, "sm_90a").plan
            assert plan.has_traits_of(workload)
    for lengths, traits in (((500, 512), "plain"), ((512, 500), "ragged")):
        workload = Workload(2, 6, 3, *lengths, 128, DType.FP16)
        assert family.traits(DEFAULT, workload) == traits
