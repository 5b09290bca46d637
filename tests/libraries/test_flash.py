"""FlashAttention 3 and 4 are asked for the same problem as everybody, or refuse in one line."""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from fa_tune import libraries
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import DType, Workload
from tests.tensors import qkv

pytest.importorskip("torch", reason="torch is not installed: nobody computes anything")

import torch

from fa_tune.operations.forward.torch_side import inputs as make_inputs
from tests.libraries.calls import run
from tests.tensors import attention

EQUAL = "b2_h6_kv6_q37_k37_d32_fp16_"
FEWER_QUERIES = "b2_h6_kv2_q37_k53_d32_fp16_"
MORE_QUERIES = "b2_h6_kv6_q53_k37_d32_fp16_"

PACKAGES = ("fa3", "fa4")

Attend = Callable[..., Any]


def install(monkeypatch: pytest.MonkeyPatch, attend: Attend) -> None:
    """Packages with this function."""
    fa3, outer, fa4 = (
        ModuleType(n) for n in ("flash_attn_interface", "flash_attn", "flash_attn.cute")
    )
    for module in (fa3, fa4):
        module.flash_attn_func = attend  # type: ignore[attr-defined]
    fa4.flash_attn_varlen_func = attend  # type: ignore[attr-defined]
    for module in (fa3, outer, fa4):
        monkeypatch.setitem(sys.modules, module.__name__, module)


def bottom_right(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **given: Any
) -> tuple[torch.Tensor, None]:
    """What both compute: [batch, seq, heads, d_head] in and out, masks aligned bottom-right."""
    shape = (q.shape[0], q.shape[2], k.shape[2], q.shape[1], k.shape[1], q.shape[3], DType.FP16)
    mask = {"causal": given["causal"], "bottom_right": given["causal"]}
    workload = Workload(*shape, **mask, softmax_scale=given["softmax_scale"])
    return attention(qkv(q, k, v), workload), None


@pytest.mark.parametrize("name", PACKAGES)
@pytest.mark.parametrize(
    "key",
    [
        EQUAL + "full",
        EQUAL + "causal",
        EQUAL + "causal_scale0.3",
        FEWER_QUERIES + "full",
        FEWER_QUERIES + "causal",
        FEWER_QUERIES + "causal_br",
        MORE_QUERIES + "full",
        MORE_QUERIES + "causal_br",
    ],
)
def test_it_is_asked_for_this_problem(monkeypatch: pytest.MonkeyPatch, name: str, key: str) -> None:
    install(monkeypatch, bottom_right)
    workload = Workload.from_key(key)
    given = make_inputs(workload, seed=1, device="cpu")
    out = run(name, given, workload)
    assert out.shape == given["q"].shape
    exact = attention(given, workload, dtype=torch.float32)
    assert float((out.float() - exact).abs().max()) < 4e-3


def test_the_log_sum_exp_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def attend(q: torch.Tensor, *_: torch.Tensor, **given: Any) -> torch.Tensor:
        asked.append(given)
        return q  # as older releases return it: not a tuple

    install(monkeypatch, attend)
    for key in (EQUAL + "full_lse", EQUAL + "full"):
        workload = Workload.from_key(key)
        given = make_inputs(workload, seed=1, device="cpu")
        for name in PACKAGES:
            run(name, given, workload)
    assert [call.get("return_lse", False) for call in asked] == [False, True, False, False]


def asked_for(monkeypatch: pytest.MonkeyPatch, name: str, key: str) -> dict[str, Any]:
    """What a package is told of a workload beside Q, K and V, and the shape of Q."""
    asked: dict[str, Any] = {}

    def attend(q: torch.Tensor, *_: torch.Tensor, **given: Any) -> torch.Tensor:
        asked.update(given, shape=tuple(q.shape))
        return q

    install(monkeypatch, attend)
    workload = Workload.from_key(key)
    given = make_inputs(workload, seed=1, device="cpu")
    out = run(name, given, workload)
    assert out.shape == given["q"].shape
    return asked


def test_windows_have_the_sides_that_the_mask_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    for key, sides in (
        (EQUAL + "causal_left5", (5, 0)),
        (EQUAL + "full_left5", (5, None)),
        (EQUAL + "full_right7", (None, 7)),
        (FEWER_QUERIES + "full_br_left5_right7", (5, 7)),
    ):
        assert asked_for(monkeypatch, "fa4", key)["window_size"] == sides
        told = tuple(-1 if side is None else side for side in sides)
        assert asked_for(monkeypatch, "fa3", key)["window_size"] == told


def test_a_packed_batch_goes_to_the_function_for_such(monkeypatch: pytest.MonkeyPatch) -> None:
    key = "b3_h6_kv2_q9_k7_d32_fp16_causal_packed_tq14_tk16_len5+0+9x7+2+7"
    asked = asked_for(monkeypatch, "fa4", key)
    assert asked["shape"] == (14, 6, 32)
    assert asked["cu_seqlens_q"].tolist() == [0, 5, 5, 14]
    assert asked["cu_seqlens_k"].tolist() == [0, 7, 9, 16]
    assert (asked["max_seqlen_q"], asked["max_seqlen_k"]) == (9, 7)
    assert "packed" in refusal("fa3", key)


def refusal(name: str, key: str) -> str:
    workload = Workload.from_key(key)
    with pytest.raises(InvalidConfig) as caught:
        run(name, make_inputs(workload, seed=1, device="cpu"), workload)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", PACKAGES)
def test_what_has_no_call_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    install(monkeypatch, bottom_right)
    text = refusal(name, MORE_QUERIES + "causal")
    assert text == (
        f"{libraries.get(name).full_name} does not take this workload: "
        "no causal mask aligned top-left for more queries than keys"
    )


@pytest.mark.parametrize("name", PACKAGES)
def test_what_the_package_refuses_says_why(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def attend(*_: object, **__: object) -> None:
        raise AssertionError("(head_dim, head_dim_v)=(32, 32) is not supported\nand more")

    install(monkeypatch, attend)
    assert refusal(name, EQUAL + "full").endswith(
        "does not take this workload: (head_dim, head_dim_v)=(32, 32) is not supported"
    )


def test_an_error_of_the_gpu_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def attend(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA error: unspecified launch failure")

    install(monkeypatch, attend)
    workload = Workload.from_key(EQUAL + "full")
    given = make_inputs(workload, seed=1, device="cpu")
    with pytest.raises(RuntimeError, match="CUDA error"):
        run("fa4", given, workload)


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_that_does_not_load_says_why(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for module in ("flash_attn_interface", "flash_attn", "flash_attn.cute"):
        monkeypatch.setitem(sys.modules, module, None)  # which makes importing it fail
    assert refusal(name, EQUAL + "full").startswith(
        f"{libraries.get(name).full_name} cannot be loaded: "
    )
