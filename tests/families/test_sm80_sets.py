import dataclasses
from pathlib import Path

import pytest

from fa_tune import kernel_configs
from fa_tune.core.arch import parse_arch
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import DType
from fa_tune.families.sm80.config import FlashForwardKernelConfig
from fa_tune.families.sm80.constraints import constraints
from fa_tune.families.sm80.names import parse_demangled
from fa_tune.families.sm80.sets import (
    get_autotuning_kernel_configs,
    get_kernel_configs,
    get_kernel_progression_configs,
    get_kernels_to_build,
    select_configs,
)

LADDER = [
    "(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles",
    "(FP16, 128, 64, 64, 4): async+swizzled+load_0_0_0_tiles",
    "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_0_0_tiles",
    "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles",
    "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer",
    "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax",
    "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax",
]


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KERNELS", raising=False)


def test_tune_set_for_one_dtype_and_d_head() -> None:
    assert get_autotuning_kernel_configs([DType.FP16]) == get_autotuning_kernel_configs()[40:]
    narrow = get_autotuning_kernel_configs(d_head=64)
    wide = [dataclasses.replace(c, d_head=128) for c in narrow]
    assert wide == get_autotuning_kernel_configs()


def test_ladder() -> None:
    assert [str(c) for c in get_kernel_progression_configs()] == LADDER


def test_ladder_at_all_block_sizes() -> None:
    configs = get_kernel_progression_configs(all_block_sizes=True)
    assert len(configs) == len(set(configs)) == 56
    sizes = [
        (128, 128, 4), (128, 128, 8), (128, 64, 4), (128, 64, 8), (128, 32, 4), (128, 32, 8),
        (64, 64, 4), (64, 32, 4),
    ]  # fmt: skip
    for i, rung in enumerate(get_kernel_progression_configs()):
        of_rung = configs[8 * i : 8 * i + 8]
        assert [(c.B_r, c.B_c, c.n_warps) for c in of_rung] == sizes
        assert {c.short_form(include_tup=False) for c in of_rung} == {
            rung.short_form(include_tup=False)
        }


def test_kernels_to_build_for_fp16_are_those_of_the_recorded_names() -> None:
    names = (Path(__file__).parents[1] / "data" / "kernel_names.txt").read_text("utf-8")
    recorded = [parse_demangled(n) for n in names.splitlines() if "StaticForward" in n]
    assert get_kernels_to_build([DType.FP16]) == sorted(recorded)


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90"])
@pytest.mark.parametrize("d_head", [64, 96, 128, 192, 256])
def test_tune_has_something_for_every_d_head_and_size_of_shared_memory(
    d_head: int, arch: str
) -> None:
    """163, 99 and 227 KiB per CTA."""
    configs = get_autotuning_kernel_configs([DType.FP16], d_head=d_head)
    assert len(configs) == (40 if d_head <= 128 else 48)
    limits = parse_arch(arch)
    runs = [c for c in configs if constraints(c, limits) is None]
    assert len(runs) >= 32
    assert {c.B_c for c in runs} == {32, 64}
    assert {c.B_r for c in runs} == {64, 128}
    assert {c.Q_mma_load_K_tiles for c in runs} == {0, 2}
    rejected = {r.constraint for c in configs if (r := constraints(c, limits)) is not None}
    assert rejected <= {"smem_fits"}
    # O and S of a warp's rows, in registers of a thread, leave room for everything else.
    assert all(c.B_r // c.n_warps * (d_head + c.B_c) / 32 <= 192 for c in configs)


@pytest.mark.parametrize("d_head", [64, 128])
@pytest.mark.parametrize("key", ["tune", "prog-all", "all"])
def test_every_set_can_run(key: str, d_head: int) -> None:
    for config in get_kernel_configs(key, d_head=d_head):
        assert constraints(config, parse_arch("sm_80")) is None


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("tune", get_autotuning_kernel_configs()),
        (" tune ", get_autotuning_kernel_configs()),
        ("all", get_kernels_to_build()),
        ("prog", get_kernel_progression_configs()),
        ("progression", get_kernel_progression_configs()),
        ("prog-all", get_kernel_progression_configs(True)),
        ("progall", get_kernel_progression_configs(True)),
        ("64,32", [c for c in get_autotuning_kernel_configs() if (c.B_r, c.B_c) == (64, 32)]),
        ("128, 64", [c for c in get_autotuning_kernel_configs() if (c.B_r, c.B_c) == (128, 64)]),
    ],
)
def test_keys(
    key: str, expected: list[FlashForwardKernelConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert expected
    assert get_kernel_configs(key) == expected
    assert select_configs(key) == expected
    monkeypatch.setenv("KERNELS", key)
    assert get_kernel_configs() == expected
    assert select_configs() == expected
    assert get_kernel_configs("prog") == get_kernel_progression_configs()


@pytest.mark.parametrize(
    ("key", "complaint"),
    [
        ("", "no kernel set given"),
        ("  ", "no kernel set given"),
        ("tuna", "unknown kernel set 'tuna'"),
        ("64", "unknown kernel set '64'"),
        ("64,32,4", "unknown kernel set '64,32,4'"),
        ("64,x", "unknown kernel set '64,x'"),
        ("-64,32", "unknown kernel set '-64,32'"),
        ("ALL", "unknown kernel set 'ALL'"),
    ],
)
def test_unknown_keys_list_what_is_allowed(
    key: str, complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for choose in (get_kernel_configs, select_configs):
        with pytest.raises(InvalidConfig) as caught:
            choose(key)
        assert str(caught.value).startswith(complaint)
        assert "allowed: fast, wide, tune, all, prog, prog-all" in str(caught.value)
        assert "64,32" in str(caught.value)
    if key.strip():
        monkeypatch.setenv("KERNELS", key)
        with pytest.raises(InvalidConfig, match="in KERNELS; allowed"):
            get_kernel_configs()


def test_a_block_size_without_configs_lists_those_with() -> None:
    with pytest.raises(InvalidConfig, match="there are 64,32 64,64 128,32 128,64"):
        get_kernel_configs("96,32")


def test_keys_re_target_sets() -> None:
    bf16 = [DType.BF16]
    assert {c.dtype for c in get_kernel_configs("prog", dtypes=bf16)} == {DType.BF16}
    assert {c.dtype for c in get_kernel_configs("all", dtypes=bf16)} == {DType.BF16}
    assert len(get_kernel_configs("all", dtypes=bf16, d_head=64)) == 45
    assert {c.d_head for c in get_kernel_configs("64,64", d_head=64)} == {64}


def test_select_one_config() -> None:
    (config,) = select_configs(LADDER[5])
    assert str(config) == LADDER[5]
    assert select_configs(LADDER[5], dtypes=[DType.FP16, DType.BF16], d_head=128) == [config]
    assert select_configs(config.to_cpp_struct()) == [config]
    (narrow,) = select_configs("(FP16, 64, 64, 4): async+load_0_0_0_tiles", d_head=64)
    assert narrow.d_head == 64
    (default,) = select_configs("(FP16, 64, 64, 4): async+load_0_0_0_tiles")
    assert default.d_head == 128


def test_a_contradicted_short_form_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidConfig, match="d_head 128, but 64 is asked for"):
        select_configs(LADDER[0], d_head=64)
    with pytest.raises(InvalidConfig, match="for FP16, but BF16 is asked for"):
        select_configs(LADDER[0], dtypes=[DType.BF16])
    with pytest.raises(InvalidConfig, match='unknown word "asinc"'):
        select_configs(LADDER[0].replace("async", "asinc"))
    monkeypatch.setenv("KERNELS", LADDER[0])
    assert [str(c) for c in select_configs()] == LADDER[:1]


def test_facade_holds_every_name_it_lists() -> None:
    assert all(hasattr(kernel_configs, name) for name in kernel_configs.__all__)
    config = get_kernel_progression_configs()[0]
    assert kernel_configs.calc_total_flop(16, 16, 4096, 64, 64, 128) == config.total_flop(
        16, 16, 4096
    )
    assert kernel_configs.calc_self_attn_flop(16, 16, 4096, 128) == config.attn_flop(16, 16, 4096)
