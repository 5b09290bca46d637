"""SDPA's back ends are asked for the same problem, or refuse in one line."""

import dataclasses
import subprocess
import sys
import warnings
from typing import Any

import pytest

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import Workload
from fa_tune.operations.base import Tensors

pytest.importorskip("torch", reason="torch is not installed: no libraries to ask")

import torch

from fa_tune.operations.forward.torch_side import inputs as make_inputs
from fa_tune.operations.forward.torch_side.scores import hidden_pairs
from tests.libraries.calls import run
from tests.project_files import ROOT
from tests.tensors import attention

EQUAL = Workload.from_key("b2_h6_kv6_q37_k37_d32_fp16_full")
FEWER_QUERIES = "b2_h6_kv6_q37_k53_d32_fp16_"
MORE_QUERIES = "b2_h6_kv6_q53_k37_d32_fp16_"


def inputs(workload: Workload) -> Tensors:
    return make_inputs(workload, seed=1, device="cpu")


def refusal(name: str, workload: Workload) -> str:
    with pytest.raises(InvalidConfig) as caught:
        run(name, inputs(workload), workload)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_importing_the_libraries_imports_no_torch() -> None:
    script = "import sys, fa_tune.libraries; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT).returncode == 0


def test_an_unknown_library_is_refused() -> None:
    assert (
        refusal("fa9", EQUAL)
        == "unknown reference 'fa9'; known: fa2, cudnn, fa3, fa4, flex, read, sdpa, cudnn-fe, "
        "flashinfer"
    )


@pytest.mark.parametrize(
    "key",
    [
        EQUAL.key,
        "b2_h6_kv6_q37_k37_d32_fp16_causal",
        "b2_h6_kv6_q37_k37_d32_bf16_causal_lse_scale0.3",
        FEWER_QUERIES + "full",
        FEWER_QUERIES + "causal",
        MORE_QUERIES + "full",
    ],
)
def test_the_library_computes_the_same(key: str) -> None:
    """torch has FlashAttention for CPUs, too, which takes equal head counts."""
    workload = Workload.from_key(key)
    given = inputs(workload)
    out = run("fa2", given, workload)
    assert out.shape == given["q"].shape
    exact = attention(given, workload, dtype=torch.float32)
    limit = 4e-3 if "fp16" in key else 3e-2
    assert float((out.float() - exact).abs().max()) < limit


Calls = list[dict[str, Any]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """What SDPA is called with, in place of a library that needs a GPU."""
    found: Calls = []

    def fake(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **given: Any) -> torch.Tensor:
        found.append({"q": q, "k": k, "v": v, **given})
        return q

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", fake)
    return found


def test_bottom_right_is_asked_for_by_name(calls: Calls) -> None:
    for key in (FEWER_QUERIES, MORE_QUERIES):
        workload = Workload.from_key(key + "causal_br")
        run("fa2", inputs(workload), workload)
        mask = calls[-1]["attn_mask"]
        assert calls[-1]["is_causal"] is False, "which would be top-left"
        hidden = hidden_pairs(workload, torch.device("cpu"))
        assert hidden is not None
        assert torch.equal(mask._materialize(), ~hidden)


@pytest.mark.parametrize("name", ["fa2", "cudnn"])
def test_scale_groups_and_log_sum_exp_are_passed_on(calls: Calls, name: str) -> None:
    workload = Workload.from_key("b2_h6_kv2_q37_k37_d32_fp16_causal_lse_scale0.3")
    run(name, inputs(workload), workload)
    (call,) = calls
    assert (call["scale"], call["enable_gqa"], call["is_causal"]) == (0.3, True, True)
    assert all(call[t].requires_grad for t in "qkv"), "else no log-sum-exp is computed"
    plain = Workload.from_key("b2_h6_kv6_q37_k37_d32_fp16_full")
    run(name, inputs(plain), plain)
    told = [calls[1][name] for name in ("scale", "enable_gqa", "is_causal")]
    assert told == [None, False, False]
    assert not any(calls[1][t].requires_grad for t in "qkv")


def test_keys_that_nobody_sees_are_left_out(calls: Calls) -> None:
    workload = Workload.from_key(FEWER_QUERIES + "causal")
    run("cudnn", inputs(workload), workload)
    assert calls[0]["k"].shape[2] == calls[0]["v"].shape[2] == workload.seq_len_q


def test_what_has_no_call_is_refused_before_it_is_made(calls: Calls) -> None:
    text = refusal("cudnn", Workload.from_key(FEWER_QUERIES + "causal_br"))
    assert text == (
        "cuDNN in torch does not take this workload: no causal mask aligned bottom-right"
    )
    for name in ("fa2", "cudnn"):
        text = refusal(name, Workload.from_key(MORE_QUERIES + "causal"))
        assert text.endswith("no causal mask aligned top-left for more queries than keys")
    assert calls == []


@pytest.mark.filterwarnings("ignore")
def test_what_the_library_itself_refuses_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(*_: object, **__: object) -> torch.Tensor:
        for text in (
            "Memory efficient kernel not used because: (Triggered internally at a.cpp:1.)",
            "Memory Efficient attention has been runtime disabled. (Triggered internally at …)",
            "Flash attention kernel not used because: (Triggered internally at a.cpp:2.)",
            "Flash attention requires q,k,v to have last dimension <= 256. (Triggered internally",
        ):
            warnings.warn(text, stacklevel=1)
        raise RuntimeError("No available kernel. Aborting execution.")

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", fake)
    assert refusal("fa2", EQUAL) == (
        "FlashAttention 2 in torch does not take this workload: "
        "Flash attention requires q,k,v to have last dimension <= 256."
    )


def test_another_error_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(*_: object, **__: object) -> torch.Tensor:
        raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", fake)
    with pytest.raises(RuntimeError, match="CUDA error"):
        run("fa2", inputs(EQUAL), EQUAL)


@pytest.mark.parametrize("name", ["fa2", "cudnn", "fa3", "fa4"])
def test_a_problem_that_the_calls_do_not_know_is_refused(name: str) -> None:
    """A field that came later must not be left out of the library's call."""
    workload = dataclasses.replace(EQUAL, op="sideways")
    assert refusal(name, workload) == f"{name} is not called for the sideways pass yet"
