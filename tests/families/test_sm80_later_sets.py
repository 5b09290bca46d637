"""The sets `fast` and `wide`: what is in them, how many, and that it runs somewhere."""

from __future__ import annotations

import pytest

from fa_tune.core.arch import parse_arch
from fa_tune.core.workload import DType
from fa_tune.families.sm80.config import FlashForwardKernelConfig
from fa_tune.families.sm80.constraints import CONSTRAINTS, constraints
from fa_tune.families.sm80.family import Sm80Family
from fa_tune.families.sm80.names import parse_short_form
from fa_tune.families.sm80.sets import get_kernel_configs, select_configs

HERE = parse_arch("sm_90")
ALL_D_HEADS = (32, 64, 96, 128, 160, 192, 224, 256)
STREAMED = "async+eager+swizzled+load_1_1_1_tiles+opt_softmax"
WINNERS = (
    f"(FP16, 128, 256, 64, 8): {STREAMED}+stages_3+rescale_8+pingpong",
    "(FP16, 128, 128, 64, 4): async+eager+swizzled+load_2_2_2_tiles+opt_softmax+rescale_8"
    "+interleave",
    f"(FP16, 64, 256, 128, 8): {STREAMED}+stages_3+rescale_8+pingpong",
    f"(FP16, 64, 128, 128, 4): {STREAMED}+rescale_8+interleave",
    f"(FP16, 64, 128, 128, 4): {STREAMED}+stages_2+rescale_8+interleave",
)


def fp16(key: str, d_head: int) -> list[FlashForwardKernelConfig]:
    return get_kernel_configs(key, dtypes=[DType.FP16], d_head=d_head)


@pytest.mark.parametrize("text", WINNERS)
@pytest.mark.parametrize("dtype", list(DType))
def test_what_won_is_in_fast(text: str, dtype: DType) -> None:
    config = parse_short_form(text.replace("FP16", dtype.name))
    assert config in get_kernel_configs("fast", d_head=config.d_head)
    assert constraints(config, HERE) is None


@pytest.mark.parametrize("d_head", ALL_D_HEADS)
@pytest.mark.parametrize("key", ["fast", "wide"])
def test_sets_are_sorted_and_only_a_device_can_refuse_their_configs(key: str, d_head: int) -> None:
    configs = get_kernel_configs(key, d_head=d_head)
    assert configs == sorted(set(configs))
    assert {c.d_head for c in configs} == {d_head}
    assert {c.dtype for c in configs} == set(DType)
    assert all(holds(c) for c in configs for _, _, holds in CONSTRAINTS)
    refused = [(c, r) for c in configs if (r := constraints(c, HERE)) is not None]
    for config, why in refused:
        assert why.constraint == "smem_fits"
        assert config.smem_bytes > 227 * 1024
        assert f"needs {config.smem_bytes / 1024:g} KiB" in why.reason
    assert len(refused) < (1 if key == "fast" else len(configs) // 4)


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89"])
@pytest.mark.parametrize("d_head", ALL_D_HEADS)
def test_fast_has_something_for_every_d_head_before_9_0(d_head: int, arch: str) -> None:
    found = [(c, constraints(c, parse_arch(arch))) for c in fp16("fast", d_head)]
    assert sum(why is None for _, why in found) >= 4
    assert all(why and why.constraint == "ping_pong_needs_9_0" for c, why in found if c.ping_pong)


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("d_head", ALL_D_HEADS)
def test_the_default_config_is_in_fast(d_head: int, dtype: DType) -> None:
    default = Sm80Family().default_config(d_head, dtype)
    assert default in get_kernel_configs("fast", dtypes=[dtype], d_head=d_head)


def test_one_config_can_be_chosen_with_the_knobs_after_the_thirteen() -> None:
    (config,) = select_configs(WINNERS[0])
    assert str(config) == WINNERS[0]
    assert (config.kv_stages, config.rescale_threshold, config.ping_pong) == (3, 8, True)
    assert select_configs(config.to_cpp_struct()) == [config]


@pytest.mark.parametrize("d_head", [1, 48, 100, 288, 1024])
def test_a_d_head_that_none_can_have_is_refused_with_the_reason(d_head: int) -> None:
    configs = fp16("fast", d_head)
    assert configs
    for config in configs:
        rejected = constraints(config, HERE)
        assert rejected is not None
        assert rejected.constraint == "d_head_whole_k_steps"
