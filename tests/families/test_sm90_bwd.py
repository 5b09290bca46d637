"""The sm90_bwd family keeps the contract, and says in Python what its kernels assert."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Any

import pytest

from fa_tune import families
from fa_tune.build import nvrtc
from fa_tune.build.native import abi
from fa_tune.core.arch import limits
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import BACKWARD, DType, Workload
from fa_tune.families.sm90_bwd import clusters
from fa_tune.families.sm90_bwd.config import KEYS as KEYS_OF_CTA
from fa_tune.families.sm90_bwd.config import SMALL_BYTES, Sm90BackwardConfig
from fa_tune.families.sm90_bwd.constraints import CONSTRAINTS, constraints
from tests.described import DEVICE, described
from tests.families.contract import SaidContract
from tests.gpu.score_hooks import HOOKS, WITH_DERIVATIVE
from tests.kernels.emulated.backward import Params
from tests.project_files import ROOT

H200 = limits((9, 0))
FAMILY: Any = families.get("sm90_bwd")
DEFAULT: Sm90BackwardConfig = FAMILY.default_config(128, DType.FP16)
TWO_PASS = DEFAULT.repeatable()
WIDE: Sm90BackwardConfig = FAMILY.default_config(192, DType.FP16)
OTHER_V: Sm90BackwardConfig = FAMILY.default_config(192, DType.FP16, d_head_v=128)
LIBRARIES = ("cudnn", "fa2")
RECORDED = ROOT / "benchmarks" / "backward_few_tiles_h200.txt"
# Of Q; of V.
HEADS = ((32, 0), (40, 0), (64, 0), (96, 0), (128, 0), (192, 0), (192, 128), (256, 0))


class TestSm90BackwardContract(SaidContract):
    name = "sm90_bwd"
    rules = CONSTRAINTS
    folder = "sm90/bwd"
    traits = True
    unsaid = ("dq_keys_have_a_pass",)  # keeps a knob without effect from being a second name
    compute_capability = (9, 0)
    refusing = ((8, 0), (8, 6), (8, 9), (10, 0), (12, 0))
    bad_configs = (
        replace(DEFAULT, d_head=84),
        replace(DEFAULT, d_head_v=64),
        replace(DEFAULT, B_r=128),
        replace(DEFAULT, B_c=64),
        replace(DEFAULT, q_stages=4),
        replace(TWO_PASS, dq_keys=136),
        replace(DEFAULT, dq_keys=128),
        replace(TWO_PASS, dynamic=True, dq_keys=128),
        replace(WIDE, two_pass=False, dq_keys=96),
        replace(WIDE, dynamic=True),
        replace(OTHER_V, dq_keys=112),
        replace(TWO_PASS, turns=False, same_step=True),
        replace(DEFAULT, turns=True, same_step=True),
        replace(DEFAULT, dynamic=False, cluster=9),
        replace(DEFAULT, cluster=2),
        replace(WIDE, cluster=2),
        replace(WIDE, dq_cluster=9),
        replace(DEFAULT, dynamic=False, dq_cluster=2),
    )


def test_shared_memory_is_what_the_kernels_lay_out() -> None:
    """Barriers and tiles at the end aside, for configs that differ in every term."""
    configs = [
        DEFAULT,
        TWO_PASS,
        replace(DEFAULT, q_stages=2, dynamic=True),
        replace(DEFAULT, dynamic=False),
        replace(TWO_PASS, dynamic=True, dq_keys=80),
        FAMILY.default_config(64, DType.BF16),
        FAMILY.default_config(40, DType.BF16),
        FAMILY.default_config(32, DType.BF16).repeatable(),
        replace(FAMILY.default_config(64, DType.BF16), dynamic=True),
        replace(FAMILY.default_config(64, DType.BF16).repeatable(), dq_keys=80),
        FAMILY.default_config(96, DType.BF16),
        replace(FAMILY.default_config(96, DType.BF16).repeatable(), dynamic=True),
        WIDE,
        replace(OTHER_V, q_stages=2),
        FAMILY.default_config(256, DType.BF16),
        replace(FAMILY.default_config(256, DType.BF16), q_stages=2),
    ]
    asserts = [
        f"static_assert(sizeof({name}<{c.to_cpp_struct()}>) <= {whole} && "
        f'sizeof({name}<{c.to_cpp_struct()}>) > {whole - SMALL_BYTES}, "{c}");'
        for c in configs
        for name, whole in (
            ("WideSharedMemory" if c.is_wide else "SharedMemory", c.smem_bytes),
            ("DqSharedMemory", c.dq_smem_bytes),
        )
    ]
    using = "using namespace fa_tune;\nusing namespace fa_tune::sm90::backward;"
    source = "\n".join(['#include "sm90/bwd/wide_shared_memory.cuh"', using, *asserts, ""])
    options = ("-std=c++20", "-arch=sm_90a")
    nvrtc.compile_source(source, "k.cu", FAMILY.source_files(), options, ())


@pytest.mark.parametrize(("d_head", "d_head_v"), HEADS)
@pytest.mark.parametrize("key", ["fast", "tune", "all"])
def test_a_set_has_the_default_and_what_repeats_the_same_bits(
    key: str, d_head: int, d_head_v: int
) -> None:
    found = FAMILY.configs(key, dtypes=[DType.BF16], d_head=d_head, d_head_v=d_head_v)
    default = FAMILY.default_config(d_head, DType.BF16, d_head_v=d_head_v)
    assert {default, default.repeatable()} <= set(found)
    passes = {c.two_pass for c in found if constraints(c, H200) is None}
    assert passes == ({True} if d_head > 128 else {False, True})


@pytest.mark.parametrize(("d_head", "d_head_v"), [(24, 0), (84, 0), (256, 128), (128, 64)])
def test_other_heads_have_no_sets_and_a_reason(d_head: int, d_head_v: int) -> None:
    for key in ("fast", "tune", "all"):
        assert FAMILY.configs(key, d_head=d_head, d_head_v=d_head_v) == []
    config = FAMILY.default_config(d_head, DType.FP16, d_head_v=d_head_v)
    assert constraints(config, H200) is not None


def test_what_repeats_the_same_bits_runs_wherever_the_config_does() -> None:
    for d_head, d_head_v in HEADS:
        for config in FAMILY.configs("all", d_head=d_head, d_head_v=d_head_v):
            if constraints(config, H200) is None:
                other = config.repeatable()
                assert constraints(other, H200) is None
                assert other.two_pass
                assert other.repeatable() == other


# Launches ---------------------------------------------------------------------------------------

# Three blocks of 128 queries, four of 128 keys; 6 heads of Q share 2 of K and V.
PROBLEM = Workload(2, 6, 2, 300, 500, 128, DType.FP16, op=BACKWARD)
QUERIES, KEYS = 2 * 6 * 3, 2 * 2 * 4
ROWS = 2 * 6 * 384  # of the workspace


def test_one_pass_prepares_the_sums_of_dq_and_finishes_them() -> None:
    prepare, main, finish = described(replace(DEFAULT, dynamic=False), PROBLEM)
    assert [d.grid[0] for d in (prepare, main, finish)] == [QUERIES, KEYS, QUERIES]
    assert [d.dependent for d in (prepare, main, finish)] == [False, True, True]
    assert [len(d.maps) for d in (prepare, main, finish)] == [0, 6, 0]
    assert [tensor.box_rows for tensor in main.maps] == [64] * 6  # Q, K, V, dO, dK, dV
    statistics, sums = 2 * 4 * ROWS, 4 * 128 * ROWS
    assert {d.workspace_bytes for d in (prepare, main, finish)} == {statistics + sums}


def test_two_passes_need_no_room_for_sums() -> None:
    dq, main = described(TWO_PASS, PROBLEM)
    assert (dq.grid[0], main.grid[0]) == (QUERIES, KEYS)
    assert (dq.dependent, main.dependent) == (False, True)
    assert [tensor.box_rows for tensor in dq.maps] == [64, 96, 96, 64, 64]  # Q, K, V, dO, dQ
    assert dq.shared_bytes == TWO_PASS.dq_smem_bytes
    assert dq.workspace_bytes == main.workspace_bytes == 2 * 4 * ROWS


def test_a_packed_batch_has_as_many_tiles_as_there_can_be() -> None:
    """Of 700 rows of Q and 900 of K in three sequences."""
    packed = replace(PROBLEM, batch=3, lengths="300+200+200x500+0+400")
    starts = {name: abi.Tensor(1 << 21) for name in ("cu_seqlens_q", "cu_seqlens_kv")}
    tiles_q, tiles_kv = (700 + 3 * 127) // 128, (900 + 3 * 127) // 128
    for config in (DEFAULT, TWO_PASS):
        *_, main = launches = described(config, packed, starts)
        assert {d.grid[0] for d in launches} == {6 * tiles_q, 2 * tiles_kv}
        assert all(len(tensor.dimensions) == 5 for tensor in main.maps)
        columns = 2 if config.two_pass else 2 + 128
        assert main.workspace_bytes == 4 * columns * 6 * 128 * tiles_q


@pytest.mark.parametrize("d_head", [32, 56, 64])
def test_a_step_of_small_heads_has_twice_as_many_queries(d_head: int) -> None:
    problem = replace(PROBLEM, d_head=d_head)
    _, main, _ = described(FAMILY.default_config(d_head, DType.FP16), problem)
    assert [tensor.box_rows for tensor in main.maps] == [128, 64, 64, 128, 64, 64]


def test_wide_heads_have_a_tile_of_as_many_keys() -> None:
    """In two halves, with columns of V of their own."""
    problem = replace(PROBLEM, d_head=192, d_head_v=128)
    dq, main = described(OTHER_V, problem)
    assert (dq.grid[0], main.grid[0]) == (QUERIES, KEYS)
    assert [tensor.box_rows for tensor in main.maps] == [64] * 6
    assert [tensor.box_rows for tensor in dq.maps] == [64, 80, 80, 64, 64]
    columns = [tensor.dimensions[0] for tensor in main.maps]  # Q, K, V, dO, dK, dV
    assert columns == [192, 192, 128, 128, 192, 128]
    assert (dq.shared_bytes, main.shared_bytes) == (OTHER_V.dq_smem_bytes, OTHER_V.smem_bytes)


def test_persistent_grids_are_no_larger_than_the_device_or_the_work() -> None:
    many = replace(PROBLEM, batch=32)
    dq, main = described(replace(TWO_PASS, dynamic=True), many)
    assert dq.grid[0] == main.grid[0] == DEVICE.multiprocessors
    dq, main = described(replace(TWO_PASS, dynamic=True), PROBLEM)
    assert (dq.grid[0], main.grid[0]) == (QUERIES, KEYS)


@pytest.mark.parametrize("length", [128, 512, 1000, 4096, 16384])
@pytest.mark.parametrize(
    ("batch", "heads", "kv_heads"), [(4, 16, 4), (1, 7, 7), (3, 22, 11), (32, 16, 16), (1, 1, 1)]
)
def test_groups_of_heads_are_of_one_size_and_fill_the_device(
    batch: int, heads: int, kv_heads: int, length: int
) -> None:
    """Otherwise the longest tiles of the last one come when most CTAs are done."""
    w = Workload(batch, heads, kv_heads, length, length, 128, DType.FP16, causal=True, op=BACKWARD)
    main = described(FAMILY.default_for(w, H200), w)[1]
    group = Params.from_buffer_copy(main.params).l2_head_group
    of_all, tiles = batch * kv_heads, -(-length // KEYS_OF_CTA)
    assert of_all % group == 0
    assert group == of_all or group * tiles >= DEVICE.multiprocessors * 9 // 10


@pytest.mark.parametrize("cluster", [2, 3, 8])
@pytest.mark.parametrize("config", [DEFAULT, TWO_PASS, replace(WIDE, B_c=64)])
def test_a_cluster_has_a_tile_of_keys(config: Sm90BackwardConfig, cluster: int) -> None:
    """All other launches are as without."""
    alone, problem = replace(config, dynamic=False), replace(PROBLEM, d_head=config.d_head)
    of_keys = 2 * 2 * -(-500 // config.B_c)
    clustered = described(replace(alone, cluster=cluster), problem)
    for one, other in zip(clustered, described(alone, problem), strict=True):
        size = cluster if other.grid[0] == of_keys else 1
        assert (one.grid[0], one.cluster[0]) == (size * other.grid[0], size)


@pytest.mark.parametrize("config", [replace(TWO_PASS, dynamic=False), WIDE])
def test_a_cluster_has_a_tile_of_queries(config: Sm90BackwardConfig) -> None:
    problem = replace(PROBLEM, d_head=config.d_head)
    dq, main = described(replace(config, dq_cluster=4), problem)
    assert (dq.grid[0], dq.cluster[0]) == (4 * QUERIES, 4)
    assert (main.grid[0], main.cluster[0]) == (KEYS, 1)


def test_half_tiles_of_a_packed_batch_are_as_many_as_there_can_be() -> None:
    packed = replace(PROBLEM, batch=3, d_head=192, lengths="300+200+200x500+0+400")
    starts = {name: abi.Tensor(1 << 21) for name in ("cu_seqlens_q", "cu_seqlens_kv")}
    _, main = described(replace(WIDE, B_c=64, cluster=2), packed, starts)
    assert main.grid[0] == 2 * 2 * ((900 + 3 * 63) // 64)


@pytest.mark.parametrize("d_head", [40, 64, 96, 128])
def test_what_serves_all_sizes_has_a_cta_for_each_tile(d_head: int) -> None:
    """As exported libraries have it."""
    first, *_ = families.defaults(d_head, DType.BF16, H200, BACKWARD)
    assert first.cluster == 1


def test_a_recording_supports_the_choice_of_clusters() -> None:
    """Defaults lose little beside the best that was measured, and nothing beside a library."""
    lost = []
    for line in RECORDED.read_text().splitlines():
        if not line.startswith("backward_"):
            continue
        key, _, *pairs = line.split()
        times = dict(zip(pairs[::2], map(float, pairs[1::2]), strict=True))
        workload = Workload.from_key(key)
        default = FAMILY.default_for(workload, H200)
        alone = "many" if default.dynamic else "alone"
        ours = times[f"cluster_{default.cluster}" if default.cluster > 1 else alone]
        fastest = max(speed for name, speed in times.items() if name not in LIBRARIES)
        lost.append(1 - ours / fastest)
        assert ours > max(times[name] for name in LIBRARIES if name in times), key
    assert len(lost) > 100
    assert max(lost) < 0.15
    assert sum(lost) / len(lost) < 0.02


def test_a_recording_supports_the_choice_of_wide_clusters() -> None:
    """Each pass by itself."""
    losses: dict[str, list[float]] = {"k": [], "q": []}
    path = ROOT / "benchmarks" / "backward_wide_few_tiles_h200.tsv"
    for line in path.read_text().splitlines():
        key, *cells = line.split("\t")
        if not cells:
            continue
        times = {name: float(time) for name, time in (cell.split("=") for cell in cells[1:-1])}
        default = FAMILY.default_for(Workload.from_key(key), H200)
        chosen = {
            "k": f"k{default.cluster}" if default.B_c == 64 else "default",
            "q": f"q{default.dq_cluster}" if default.dq_cluster > 1 else "default",
        }
        for of_pass, found in losses.items():
            own = {n: t for n, t in times.items() if n[0] == of_pass and n != "k2q2"}
            own["default"] = times["default"]
            if (name := chosen[of_pass]) in own:
                found.append(own[name] / min(own.values()))
    assert all(len(found) > 100 for found in losses.values())
    assert max(map(max, losses.values())) < 1.1
    assert max(map(statistics.fmean, losses.values())) < 1.01


@pytest.mark.parametrize("mask", ["full", "causal", "causal_left700", "full_left300_right90"])
@pytest.mark.parametrize("lengths", ["q1000_k1000", "q333_k2000", "q2000_k333", "q1_k4096"])
@pytest.mark.parametrize("heads", ["h1_kv1", "h8_kv2", "h71_kv1", "h64_kv64"])
@pytest.mark.parametrize("d_head", [128, 256])
def test_clusters_take_what_leaves_the_device_idle(
    mask: str, lengths: str, heads: str, d_head: int
) -> None:
    """Never of fewer steps than CTAs, in the longest tile; and none where tiles are many."""
    for batch in (1, 3, 100):
        w = Workload.from_key(f"backward_b{batch}_{heads}_{lengths}_d{d_head}_bf16_{mask}")
        config = FAMILY.default_for(w, H200)
        assert constraints(config, H200) is None
        steps = -(-w.seq_len_q // config.B_r) * (w.heads // w.kv_heads)
        assert config.cluster <= max(1, steps)
        assert config.dq_cluster <= -(-w.seq_len_kv // config.dq_keys)
        if clusters.tiles_of(w) > clusters.MANY * H200.multiprocessors:
            assert config.cluster == 1
        if clusters.query_tiles_of(w) > clusters.MANY * H200.multiprocessors:
            assert config.dq_cluster == 1


def test_only_keys_that_fill_no_blocks_need_another_kernel() -> None:
    for lengths, traits in (((300, 512), "plain"), ((1, 128), "plain"), ((512, 500), "ragged")):
        queries, keys = lengths
        workload = replace(PROBLEM, seq_len_q=queries, seq_len_kv=keys)
        assert FAMILY.traits(DEFAULT, workload) == traits


def test_persistent_kernels_are_verified_over_several_rounds() -> None:
    config = replace(TWO_PASS, dynamic=True)
    for traits in ("plain", "causal+ragged", "window+sink"):
        (workload,) = FAMILY.extra_verification(config, traits)
        assert -(-workload.seq_len_kv // KEYS_OF_CTA) * workload.kv_heads * workload.batch > 132
        assert FAMILY.traits(config, workload) == traits


def test_a_hook_needs_its_derivative_and_no_bias_before_it() -> None:
    whole = Workload(1, 1, 1, 128, 128, 128, DType.FP16, op=BACKWARD, score_hook=WITH_DERIVATIVE)
    assert FAMILY.traits(DEFAULT, whole) == f"hook_{WITH_DERIVATIVE}"
    for without in (*HOOKS, None):
        lacking = replace(whole, score_hook=without or WITH_DERIVATIVE, alibi=without is None)
        with pytest.raises(InvalidConfig):
            FAMILY.traits(DEFAULT, lacking)


def _named(workload: Workload) -> dict[str, str]:
    """Configs by the names that benchmarks/backward_few_queries_h200.tsv has for them."""
    family = families.get("sm90_bwd")
    one = family.default_config(workload.d_head, workload.dtype)
    assert isinstance(one, Sm90BackwardConfig)
    meeting = replace(one, q_stages=3 if one.d_head <= 64 else 2, same_step=True)
    found = {str(meeting): "onem", str(one): "one"}
    for dq_keys in (64, 96):
        found[str(replace(one.repeatable(), dq_keys=dq_keys))] = "two"
    for config in clusters.of_sizes(one):
        found[str(config)] = f"c{config.cluster}{'m' * config.same_step}"
    return found


def test_few_queries_have_one_pass_or_two_by_their_keys() -> None:
    """Near the fastest that was measured, of those that the default may be."""
    losses = []
    for line in (ROOT / "benchmarks/backward_few_queries_h200.tsv").read_text().splitlines():
        key, *cells = line.split("\t")
        times = {n: float(t) for n, t in (c.split("=") for c in cells[1:-1])} if cells else {}
        workload = Workload.from_key(key) if cells else None
        if workload is None or workload.d_head > 128:
            continue
        default = str(families.get("sm90_bwd").default_for(workload, H200))
        times[_named(workload).get(cells[-1], "")] = times["default"]
        if (name := _named(workload).get(default)) in times:
            own = [time for n, time in times.items() if n not in ("fa2", "cudnn")]
            losses.append(times[name] / min(own))
    assert len(losses) > 100
    assert statistics.fmean(losses) < 1.04
    assert max(losses) < 1.4
