"""FlexAttention is asked for the same problem as everybody."""

import pytest

from fa_tune.core.workload import Workload

pytest.importorskip("torch", reason="torch is not installed: nobody computes anything")

import torch
from torch.nn.attention.flex_attention import flex_attention

from fa_tune.libraries import flex
from fa_tune.operations.forward.torch_side import inputs as make_inputs
from tests.libraries.calls import run
from tests.tensors import attention

FEWER_QUERIES = "b2_h6_kv2_q37_k53_d32_fp16_"


@pytest.mark.parametrize(
    "key",
    [
        FEWER_QUERIES + "full",
        FEWER_QUERIES + "causal",
        FEWER_QUERIES + "causal_br_lse",
        FEWER_QUERIES + "causal_br_left7",
        FEWER_QUERIES + "full_br_left3_right9",
        FEWER_QUERIES + "full_right9",
        FEWER_QUERIES + "full_scale0.3_softcap0.5",
        FEWER_QUERIES + "causal_br_softcap2.0_alibi",
        "b1_h4_kv4_q40_k40_d32_fp16_causal_dv16",
    ],
)
def test_it_is_asked_for_this_problem(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setattr(flex, "_compiled", lambda: flex_attention)  # not compiled: what it means
    workload = Workload.from_key(key)
    given = make_inputs(workload, seed=1, device="cpu")
    out = run("flex", given, workload)
    exact = attention(given, workload, dtype=torch.float32)
    assert out.shape == exact.shape
    assert float((out.float() - exact).abs().max()) < 4e-3
