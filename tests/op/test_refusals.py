"""What no kernel runs is asked for once, and stands for nothing else."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fa_tune.core.errors import InvalidConfig, NoUsableVariant
from fa_tune.op import flash_attn, flash_kv_cache, transformers_attention
from fa_tune.op.refusals import Asked, Refusals
from fa_tune.op.traits import Traits

HEADS = torch.zeros(4)


pytestmark = pytest.mark.filterwarnings("ignore")


def half(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.float16)


Q = half(2, 3, 4, 32)
PLAIN = Asked(Q, Q, Q, Traits(), lse=False)


def too_hot() -> None:
    raise NoUsableVariant("too hot")


def test_a_refusal_is_of_one_kind_of_problem() -> None:
    refusals = Refusals()
    assert refusals.attempt(too_hot, PLAIN) == (None, "too hot")
    assert refusals.attempt(lambda: pytest.fail("asked again"), PLAIN) == (None, "too hot")
    wide, bf16 = half(2, 3, 4, 64), Q.bfloat16()
    assert refusals.reason(PLAIN._replace(q=half(5, 9, 4, 32))) == "too hot"
    assert refusals.reason(PLAIN._replace(traits=Traits(scale=0.5))) == "too hot"
    others: list[Traits] = [
        Traits(causal=True),
        Traits(window_left=3),
        Traits(window_right=0),
        Traits(sink=HEADS),
        Traits(softcap=5.0),
        Traits(alibi_slopes=HEADS),
        Traits(score_hook="0" * 16),
    ]
    assert not any(refusals.reason(PLAIN._replace(traits=traits)) for traits in others)
    assert not refusals.reason(PLAIN._replace(lse=True))
    for of in ("packed", "cache"):
        assert not refusals.reason(PLAIN._replace(of=of))
    for three in ((wide, wide, Q), (Q, Q, wide), (bf16, bf16, bf16), (Q, bf16, bf16)):
        assert not refusals.reason(Asked(*three, Traits(), lse=False))
    trained = PLAIN._replace(q=Q.clone().requires_grad_())
    assert not refusals.reason(trained)
    with torch.no_grad():
        assert refusals.reason(trained) == "too hot"
    refusals = Refusals()
    refusals.attempt(too_hot, PLAIN._replace(traits=Traits(score_hook="0" * 16)))
    assert not refusals.reason(PLAIN._replace(traits=Traits(score_hook="0" * 16)))
    assert not refusals.reason(PLAIN)


class Kernels:
    """In the place of ours: none runs what `refuses` is true of."""

    def __init__(self, refuses: Callable[[dict[str, Any]], bool]) -> None:
        self.refuses = refuses
        self.asked = 0

    def __call__(self, q: torch.Tensor, *_: Any, **problem: Any) -> Any:
        self.asked += 1
        if self.refuses(problem):
            raise NoUsableVariant("no kernel runs it")
        lse = torch.zeros(2, 4, 3) if problem.get("return_lse") else None
        return q if lse is None else (q, lse)


def test_a_hook_that_does_not_compile_leaves_other_calls_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernels = Kernels(lambda problem: problem["score_hook"] is not None)
    monkeypatch.setattr(flash_attn, "attention", kernels)
    monkeypatch.setattr(flash_attn, "why_not_ours", lambda *_: "")
    monkeypatch.setattr(flash_attn, "_refusals", Refusals())
    for _ in range(2):
        with pytest.raises(InvalidConfig):
            flash_attn.flash_attn_func(Q, Q, Q, score_hook="0" * 16)
    assert kernels.asked == 2
    flash_attn.flash_attn_func(Q, Q, Q)
    assert kernels.asked == 3


def test_a_soft_cap_that_no_kernel_has_leaves_other_calls_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dense = Kernels(lambda problem: problem["softcap"] is not None)
    packed = Kernels(lambda problem: False)
    monkeypatch.setattr(flash_attn, "attention", dense)
    monkeypatch.setattr(flash_attn, "packed_attention", lambda q, *_, **__: (packed(q), None))
    monkeypatch.setattr(flash_attn, "why_not_ours", lambda *_: "")
    monkeypatch.setattr(flash_attn, "_refusals", Refusals())
    for _ in range(2):
        flash_attn.flash_attn_func(Q, Q, Q, softcap=5.0)
    assert dense.asked == 1, "asked again for what nothing runs"
    flash_attn.flash_attn_func(Q, Q, Q)
    assert dense.asked == 2
    starts = torch.tensor([0, 3], dtype=torch.int32)
    flash_attn.flash_attn_varlen_func(Q[0], Q[0], Q[0], starts, starts, 3, 3, softcap=5.0)
    assert packed.asked == 1


def test_a_mask_that_no_kernel_has_leaves_other_caches_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernels = Kernels(lambda problem: False)

    def attend(q: torch.Tensor, cache: Any, traits: Traits, **options: Any) -> Any:
        return kernels(q, causal=traits.causal), None

    kernels.refuses = lambda problem: problem["causal"]
    monkeypatch.setattr(flash_kv_cache, "attend", attend)
    monkeypatch.setattr(flash_kv_cache, "why_not_ours", lambda *_: "")
    monkeypatch.setattr(flash_kv_cache, "_refusals", Refusals())
    lengths = torch.tensor([2, 3], dtype=torch.int32)
    for causal, asked in ((True, 1), (True, 1), (False, 2)):
        flash_kv_cache.flash_attn_with_kvcache(Q, Q, Q, cache_seqlens=lengths, causal=causal)
        assert kernels.asked == asked


def test_a_window_that_no_kernel_has_leaves_other_layers_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    kernels = Kernels(lambda problem: problem["window"] != (None, None))
    monkeypatch.setattr(transformers_attention, "attention", kernels)
    monkeypatch.setattr(transformers_attention, "_DEVICES", ("cpu",))
    monkeypatch.setattr(transformers_attention, "_refusals", Refusals())
    module = SimpleNamespace(is_causal=True, num_key_value_groups=1, training=False)
    for window, asked in ((2, 1), (2, 1), (None, 2)):
        q = half(2, 4, 3, 32)
        transformers_attention.attend(module, q, q, q, None, sliding_window=window)
        assert kernels.asked == asked
