"""What is right is let through and what is not is found, whatever the inputs; on the CPU."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from fa_tune.core.model import CaseError
from fa_tune.core.workload import DType, Workload

pytest.importorskip("torch", reason="torch is not installed: there is nothing to judge with")

import torch

from fa_tune.operations.base import SINK_FIRST, SINK_LAST, CheckCase, Tensors
from fa_tune.operations.forward.torch_side import exact as judging
from fa_tune.operations.forward.torch_side import expected
from fa_tune.operations.forward.torch_side import inputs as make_inputs
from fa_tune.operations.torch_side import Judged, judge, outputs_of
from tests.gpu.tiled_kernel import TiledKernel
from tests.tensors import attention

MEAN = 0.25
Q, KV, D = 192, 509, 64
LARGE = 1e5 / (3.5 * math.sqrt(D))  # a scale with which scores reach 1e5
Faulty = Callable[[Tensors, Workload], dict[str, torch.Tensor]]


def workload(dtype: DType, *, causal: bool = False, scale: float | None = None) -> Workload:
    shape = (1, 4, 2, Q, KV, D, dtype)
    return Workload(*shape, causal=causal, bottom_right=causal, lse=True, softmax_scale=scale)


def inputs(kind: str, w: Workload) -> tuple[CheckCase, Tensors]:
    """A case and its inputs.  falling: each 64 keys are 12 nats above the next."""
    word = kind if kind in (SINK_FIRST, SINK_LAST) else "normal"
    w = replace(w, softmax_scale=LARGE) if kind == "large" else w
    case = CheckCase(w, word)
    drawn = make_inputs(w, word, seed=3, mean=MEAN, extra_heads=1, device="cpu")
    if kind == "sigma_12":
        drawn["q"].mul_(12)
    elif kind in ("falling", "rising"):
        steps = torch.arange(KV) // 64 * (-12.0 if kind == "falling" else 12.0)
        drawn["q"][..., 0] = 8.0
        drawn["k"][..., 0] = (steps / (8 * w.scale))[None, :, None]
    return case, drawn


KINDS = ("normal", "sigma_12", SINK_FIRST, SINK_LAST, "falling", "rising", "large")


def tiled(**how: Any) -> Faulty:
    """A kernel by blocks of keys: as others do it, or with a fault."""
    kernel = TiledKernel(**{"B_r": Q, "B_c": 64, **how})

    def call(given: Tensors, w: Workload) -> dict[str, torch.Tensor]:
        made = outputs_of(w, fill=math.nan, device="cpu")
        kernel(w, given, made["o"], made["lse"])
        return made

    return call


@cache
def prepared(kind: str, w: Workload) -> tuple[CheckCase, Tensors, Mapping[str, Judged]]:
    case, drawn = inputs(kind, w)
    return case, drawn, expected(case.workload, drawn)


def found(kind: str, w: Workload, kernel: Faulty) -> CaseError:
    case, drawn, must_be = prepared(kind, w)
    return judge(case, must_be, kernel(drawn, case.workload))


RIGHT = {
    "forwards": tiled(),
    "backwards": tiled(backwards=True),
    "small blocks": tiled(B_c=16, backwards=True),
    "one block": tiled(B_c=1024),
    "headroom": tiled(headroom=4.0, backwards=True),
    "largest weights that are rounded": tiled(headroom=5.5, backwards=True),
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", RIGHT)
def test_another_order_of_the_same_arithmetic_passes(
    name: str, kind: str, dtype: DType, causal: bool
) -> None:
    case = found(kind, workload(dtype, causal=causal), RIGHT[name])
    assert case.ok, case


@pytest.mark.parametrize("dtype", list(DType))
def test_a_single_key_and_equal_keys_pass(dtype: DType) -> None:
    w = replace(workload(dtype), seq_len_q=3, seq_len_kv=1)
    assert found("normal", w, tiled(headroom=5.5)).ok
    case, drawn = inputs("large", workload(dtype))
    drawn["k"][:] = drawn["k"][:, :1]
    assert judge(case, expected(case.workload, drawn), tiled()(drawn, case.workload)).ok


F16, B16 = workload(DType.FP16), workload(DType.BF16)
ORDINARY = ("normal", "sigma_12", SINK_FIRST, SINK_LAST, "falling")


# With a sink the other weights are so small that this does not reach the output.
@pytest.mark.parametrize("kind", ["normal", "falling", "rising"])
def test_weights_rounded_to_bf16_in_an_fp16_kernel(kind: str) -> None:
    """Not at 12 nats: there one key has most of the weight, and its weight of 1 is exact."""
    case = found(kind, F16, tiled(p_dtype=torch.bfloat16))
    assert not case.ok, case


@pytest.mark.parametrize("w", [F16, B16], ids=["fp16", "bf16"])
@pytest.mark.parametrize("kind", ORDINARY)
def test_half_a_percent_on_the_sums(kind: str, w: Workload) -> None:
    for factor in (0.995, 1.005):
        case = found(kind, w, tiled(sum_factor=factor))
        assert not case.ok, case


def _without_lse(factor: float) -> Faulty:
    return lambda given, w: {"o": tiled(sum_factor=factor)(given, w)["o"]}


@pytest.mark.parametrize("w", [F16, B16], ids=["fp16", "bf16"])
@pytest.mark.parametrize("kind", ORDINARY)
def test_half_a_percent_on_the_sums_shows_in_the_output_alone(kind: str, w: Workload) -> None:
    for factor in (0.995, 1.005):
        case = found(kind, w, _without_lse(factor))
        assert not case.ok, case


@pytest.mark.parametrize("w", [F16, B16], ids=["fp16", "bf16"])
@pytest.mark.parametrize(
    ("kind", "key"), [("normal", 0), ("normal", KV - 1), (SINK_FIRST, 0), (SINK_LAST, KV - 1)]
)
def test_a_lost_key(kind: str, key: int, w: Workload) -> None:
    case = found(kind, w, tiled(lost_key=key))
    assert not case.ok, case


@pytest.mark.parametrize("kind", ORDINARY)
def test_a_log_sum_exp_off_by_twice_the_tolerance(kind: str) -> None:
    """2e-5 and what fp32 scores leave open, which is more where these are large."""
    for off in (4e-5, -4e-5):
        off *= 2.5 if kind in ("sigma_12", "falling") else 1
        assert not found(kind, F16, tiled(lse_off=off)).ok


@pytest.mark.parametrize("off", [-1, 1])
@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("kind", ["normal", "sigma_12"])
def test_a_diagonal_off_by_one(kind: str, dtype: DType, off: int) -> None:
    assert not found(kind, workload(dtype, causal=True), tiled(diagonal_off=off)).ok


@pytest.mark.parametrize("w", [F16, B16], ids=["fp16", "bf16"])
def test_rows_of_v_that_are_swapped(w: Workload) -> None:
    def swapped(given: Tensors, w: Workload) -> dict[str, torch.Tensor]:
        v = given["v"].clone()
        v[:, [7, 8]] = v[:, [8, 7]]
        return tiled()({**given, "v": v}, w)

    assert not found("normal", w, swapped).ok


@pytest.mark.parametrize("name", ["o", "lse"])
def test_an_element_that_nobody_wrote(name: str) -> None:
    def forgetful(given: Tensors, w: Workload) -> dict[str, torch.Tensor]:
        outputs = tiled()(given, w)
        outputs[name][-1, -1, -1] = math.nan
        return outputs

    case = found("normal", F16, forgetful)
    assert not case.ok
    assert math.isnan(case.max_abs_error)


def test_one_row_of_one_head_with_half_a_percent_too_much() -> None:
    """In fp16; in bf16 that is less than a unit in the last place, and only the log-sum-exp
    shows it."""

    def one(given: Tensors, w: Workload) -> dict[str, torch.Tensor]:
        outputs = tiled()(given, w)
        outputs["o"][0, 5, 1] *= 1.005
        return outputs

    assert not found("normal", F16, one).ok


def test_rows_without_keys_are_zero_and_minus_infinity() -> None:
    w = replace(workload(DType.FP16, causal=True), seq_len_q=KV, seq_len_kv=Q)
    assert w.diagonal < 0
    assert found("normal", w, tiled()).ok

    def finite(given: Tensors, w: Workload) -> dict[str, torch.Tensor]:
        outputs = tiled()(given, w)
        return {**outputs, "lse": outputs["lse"].clamp(min=-1e30)}

    assert not found("normal", w, finite).ok

    def nonzero(given: Tensors, w: Workload) -> dict[str, torch.Tensor]:
        outputs = tiled()(given, w)
        outputs["o"][0, 0] = outputs["o"][0, -1]
        return outputs

    assert not found("normal", w, nonzero).ok


def test_a_sequence_without_keys_has_the_sink_as_its_log_sum_exp() -> None:
    shape = (2, 4, 2, 1, 5, D, DType.FP16)
    w = Workload(*shape, lse=True, sink=True, cache_lengths="5+0")
    given = make_inputs(w, seed=3, mean=MEAN, device="cpu")
    must_be = expected(w, given)
    assert torch.equal(must_be["lse"].exact[1, :, 0], given["sink"].double())
    assert not must_be["o"].exact[1].any()


@pytest.mark.parametrize("causal", [False, True])
def test_it_is_the_definition_and_in_parts_it_is_the_same(
    monkeypatch: pytest.MonkeyPatch, causal: bool
) -> None:
    _, drawn = inputs("normal", w := workload(DType.FP16, causal=causal))
    whole = expected(w, drawn)
    by_hand = attention(drawn, w, dtype=torch.float64)
    assert float((whole["o"].exact - by_hand).abs().max()) < 1e-13
    for scores in (1, 2 * 5 * KV, 2 * Q * KV):
        monkeypatch.setattr(judging, "SCORES_AT_ONCE", scores)
        part = expected(w, drawn)
        for name in ("o", "lse"):
            assert torch.allclose(part[name].exact, whole[name].exact, atol=1e-13)
            assert torch.allclose(part[name].open, whole[name].open, rtol=1e-4)
        assert part["o"].reference.rms == pytest.approx(whole["o"].reference.rms, rel=0.01)


def test_in_fp32_ordinary_inputs_are_judged_alike() -> None:
    _, drawn = inputs("sigma_12", F16)
    fine, coarse = (
        expected(F16, drawn, precise=p)["o"].reference for p in (torch.float64, torch.float32)
    )
    assert coarse.rms == pytest.approx(fine.rms, rel=0.01)
    assert coarse.largest == pytest.approx(fine.largest, rel=0.05)


def test_what_scores_leave_open_is_nothing_but_where_they_are_large() -> None:
    """Of a unit in the last place of an output near 1."""
    unit = 2.0**-10
    for kind, most in (("normal", 0.01), ("sigma_12", 0.2)):
        case, drawn = inputs(kind, F16)
        assert float(expected(case.workload, drawn)["o"].open.max()) < most * unit
    case, drawn = inputs("large", F16)
    open_ = expected(case.workload, drawn)["o"].open
    assert float(open_.max()) > unit
    assert float((open_ < unit / 8).float().mean()) > 0.95, "most rows see one key alone"


def test_rows_that_differ_count_as_fewer() -> None:
    exact = torch.zeros(2, 3, 8, dtype=torch.float64)
    plain = Judged(exact, torch.zeros_like(exact))
    assert plain.errors(exact).rows == 6
    assert plain.errors(torch.ones_like(exact)).rows == pytest.approx(6)
    one = exact.clone()
    one[1, 2] = 1e-100
    assert plain.errors(one).rows == pytest.approx(1)


def test_outputs_have_room_for_all() -> None:
    rooms = outputs_of(F16, fill=math.nan, device="cpu")
    assert rooms.keys() == expected(F16, inputs("normal", F16)[1]).keys()
