"""Launches to subjects, by symbol and by place."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from fa_tune.core.errors import ProfileFormatError
from fa_tune.core.model import Quantity
from fa_tune.profile.ncu.launches import Launch, MetricValue, Missing
from fa_tune.profile.ncu.match_launches import PASSES, assign_launches, measurement
from fa_tune.profile.ncu.metrics import CYCLES, DURATION, REGISTERS

SYMBOLS = {"sm80:a": ("_Z1a",), "sm80:b": ("_Z1b",), "split:c": ("_Z1c", "_Z7combine")}
LIBRARIES = {"ref:fa2": "fa2", "ref:cudnn": "cudnn", "ref:read": "read", "ref:flex": "flex"}
FA2 = "_ZN13pytorch_flash16flash_fwd_kernelIN23Flash_fwd_kernel_traitsE"
SPLIT = "_ZN13pytorch_flash24flash_fwd_splitkv_kernelE"
COMBINE = "_ZN13pytorch_flash32flash_fwd_splitkv_combine_kernelE"
READ = "bare_read"
FLEX, HELPER = "triton_tem_fused_flex_attention_0", "triton_poi_fused__to_copy_1"
CUDNN = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7"


def launch(
    kernel: str, metrics: Mapping[str, MetricValue] | None = None, *, number: int = 0
) -> Launch:
    return Launch(1, number, kernel, (128, 1, 1), (1, 1, 1), "0", "9.0", metrics or {})


def timed(kernel: str, duration_s: float, **more: MetricValue) -> Launch:
    return launch(kernel, {DURATION: Quantity(duration_s, "s"), **more})


def places(order: list[str], kernels: list[str]) -> dict[str, list[int]]:
    """Which launches, by number, each subject gets."""
    launches = [launch(kernel, number=number) for number, kernel in enumerate(kernels)]
    found = assign_launches(order, SYMBOLS, LIBRARIES, launches)
    return {subject: [one.launch_id for one in mine] for subject, mine in found.items()}


# Assigning --------------------------------------------------------------------------------------


def test_variants_by_symbol_and_references_by_place() -> None:
    order = ["sm80:b", "ref:fa2", "sm80:a", "ref:cudnn", "ref:cudnn", "sm80:b"]
    kernels = ["_Z1b", FA2, "_Z1a", CUDNN, CUDNN, "_Z1b"]
    assert places(order, kernels) == {
        "sm80:b": [0, 5],
        "ref:fa2": [1],
        "sm80:a": [2],
        "ref:cudnn": [3, 4],
    }


@pytest.mark.parametrize(
    ("order", "kernels", "expected"),
    [
        (["ref:fa2", "sm80:a"], [SPLIT, COMBINE, "_Z1a"], {"ref:fa2": [0, 1], "sm80:a": [2]}),
        (["ref:fa2", "ref:cudnn"], [SPLIT, COMBINE, CUDNN], {"ref:fa2": [0, 1], "ref:cudnn": [2]}),
        (["ref:cudnn", "ref:fa2"], [CUDNN, SPLIT, COMBINE], {"ref:cudnn": [0], "ref:fa2": [1, 2]}),
        (["ref:fa2", "ref:fa2"], [SPLIT, COMBINE, SPLIT, COMBINE], {"ref:fa2": [0, 1, 2, 3]}),
        (
            ["sm80:a", "ref:read", "ref:read", "sm80:a"],
            ["_Z1a", READ, READ, "_Z1a"],
            {"sm80:a": [0, 3], "ref:read": [1, 2]},
        ),
        (["ref:fa2", "ref:read"], [SPLIT, COMBINE, READ], {"ref:fa2": [0, 1], "ref:read": [2]}),
        # Without a label a kernel belongs to the call before the next library.
        (["ref:flex", "sm80:a"], [FLEX, HELPER, "_Z1a"], {"ref:flex": [0, 1], "sm80:a": [2]}),
        (
            ["ref:flex", "ref:cudnn"] * 2,
            [FLEX, HELPER, CUDNN] * 2,
            {"ref:flex": [0, 1, 3, 4], "ref:cudnn": [2, 5]},
        ),
        (["ref:flex", "ref:flex"], [FLEX, HELPER] * 2, {"ref:flex": [0, 1, 2, 3]}),
        (["ref:fa2", "ref:cudnn"], [FA2, "renamed"], {"ref:fa2": [0], "ref:cudnn": [1]}),
        (["ref:fa2", "ref:cudnn"], ["renamed", CUDNN], {"ref:fa2": [0], "ref:cudnn": [1]}),
        (["ref:flex", "ref:cudnn"], [HELPER, FLEX, CUDNN], {"ref:flex": [0, 1], "ref:cudnn": [2]}),
    ],
)
def test_a_library_call_of_several_kernels(
    order: list[str], kernels: list[str], expected: dict[str, list[int]]
) -> None:
    assert places(order, kernels) == expected


@pytest.mark.parametrize(
    "kernels", [[FLEX, HELPER, "renamed"], ["renamed", "renamed", "renamed"], [FLEX, HELPER, FA2]]
)
def test_kernels_that_may_be_of_either_library_are_refused(kernels: list[str]) -> None:
    with pytest.raises(ProfileFormatError, match="ref:flex"):
        places(["ref:flex", "ref:cudnn", "sm80:a"], [*kernels, "_Z1a"])


def test_a_variant_of_several_kernels() -> None:
    order = ["split:c", "sm80:a", "split:c", "split:c"]
    call = ["_Z1c", "_Z7combine"]
    assert places(order, [*call, "_Z1a", *call, *call]) == {
        "split:c": [0, 1, 3, 4, 5, 6],
        "sm80:a": [2],
    }
    assert places(order, [*call, "_Z1a", "_Z1c"])["split:c"] == [0, 1, 3], "a part of a call"
    with pytest.raises(ProfileFormatError, match=r"launch 1 is _Z1a, where split:c was launched"):
        places(order, ["_Z1c", "_Z1a"])


@pytest.mark.parametrize("length", range(6))
def test_any_prefix_may_be_all_there_is(length: int) -> None:
    order = ["sm80:a", "ref:fa2", "sm80:b", "sm80:b", "ref:cudnn"]
    kernels = ["_Z1a", FA2, "_Z1b", "_Z1b", CUDNN][:length]
    found = places(order, kernels)
    assert sorted(n for numbers in found.values() for n in numbers) == list(range(length))
    assert set(found) == set(order), "who has no launch yet is there with none"


@pytest.mark.parametrize(
    ("order", "kernels", "said"),
    [
        (["sm80:a"], ["_Z1b"], "launch 0 is _Z1b, where sm80:a was launched"),
        (["sm80:a", "sm80:b"], ["_Z1a", "_Z7foreign"], "launch 1 is _Z7foreign"),
        (["sm80:a", "sm80:b"], ["_Z7foreign", "_Z1a"], "another program used the GPU"),
        (["ref:fa2", "sm80:a"], ["_Z1a"], "no kernel of ref:fa2 was profiled"),
        (["ref:fa2", "ref:cudnn"], [FA2, CUDNN, FLEX], f"launch 2 is {FLEX}"),
        (["ref:fa2", "ref:cudnn", "sm80:a"], [FA2, "_Z1a"], "no kernel of ref:cudnn"),
    ],
)
def test_a_launch_that_is_nobodys_is_refused(
    order: list[str], kernels: list[str], said: str
) -> None:
    with pytest.raises(ProfileFormatError, match=said):
        places(order, kernels)


# Measuring --------------------------------------------------------------------------------------


def test_samples_in_order_counters_as_medians_and_the_kernels_of_a_call_added_up() -> None:
    launches = [
        timed("_Z1a", time_s, **{CYCLES: Quantity(cycles, "cycle"), PASSES: Quantity(3, "pass")})
        for time_s, cycles in ((3e-3, 30.0), (1e-3, 10.0), (2e-3, 25.0))
    ]
    found = measurement("sm80:a", "w", launches, 3, (DURATION, CYCLES, REGISTERS), {"cache": "all"})
    assert found is not None
    assert found.samples_s == (3e-3, 1e-3, 2e-3)
    assert found.counters == {CYCLES: Quantity(25.0, "cycle"), PASSES: Quantity(3, "pass")}
    assert found.conditions == {"cache": "all"}
    assert (found.subject, found.workload, found.method) == ("sm80:a", "w", "ncu")
    launches = [
        timed("_Z1a", 1e-3, **{CYCLES: Missing("n/a"), REGISTERS: Missing("no data")}),
        timed("_Z1a", 1e-3, **{CYCLES: Quantity(10.0, "cycle")}),
    ]
    found = measurement("sm80:a", "w", launches, 2, (DURATION, CYCLES, REGISTERS), {})
    assert found is not None
    assert found.counters == {CYCLES: Quantity(10.0, "cycle")}
    launches = [
        timed(SPLIT, 8e-3, **{CYCLES: Quantity(80.0, "cycle")}),
        timed(COMBINE, 1e-3, **{CYCLES: Quantity(10.0, "cycle")}),
        timed(HELPER, 2e-3, **{CYCLES: Quantity(20.0, "cycle")}),
        timed(SPLIT, 6e-3, **{CYCLES: Quantity(60.0, "cycle")}),
    ]
    found = measurement("ref:fa2", "w", launches, 2, (DURATION, CYCLES), {})
    assert found is not None
    assert found.samples_s == pytest.approx((9e-3, 8e-3))
    assert found.counters == {CYCLES: Quantity(70.0, "cycle")}


@pytest.mark.parametrize(
    "launches",
    [
        [],
        [timed("_Z1a", 1e-3)],
        [timed("_Z1a", 1e-3), launch("_Z1a")],
        [timed("_Z1a", 1e-3), launch("_Z1a", {DURATION: Missing("n/a")})],
        [timed(SPLIT, 1e-3)] * 3,
    ],
    ids=["none", "one of two", "not collected", "missing", "half a call"],
)
def test_no_time_from_calls_that_are_not_whole(launches: list[Launch]) -> None:
    assert measurement("sm80:a", "w", launches, 2, (DURATION,), {}) is None
