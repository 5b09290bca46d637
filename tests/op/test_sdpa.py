"""The override of torch's flash backend, on the CPU with a kernel of its own as torch's."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.attention

from fa_tune.core.errors import ToolMissing
from fa_tune.op import fallback_warning, sdpa
from fa_tune.op.traits import Traits
from tests.op import twins
from tests.project_files import ROOT

aten = torch.ops.aten


def torchs(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    """What torch's own kernel gives here: sevens."""
    return sdpa._results(query, key, torch.full_like(query, 7), query[..., 0].float())


def torchs_backward(grad_out: torch.Tensor, *three: torch.Tensor, **_: Any) -> Any:
    return tuple(torch.full_like(t, 7) for t in three[:3])


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    made = sdpa.Override
    monkeypatch.setattr(sdpa, "Override", lambda: made("CPU"))
    monkeypatch.setattr(fallback_warning, "_told", set())
    with twins.registered(), torch.library._scoped_library("aten", "IMPL") as library:
        name = "_scaled_dot_product_flash_attention"
        library.impl(name, torchs, "CPU", allow_override=True)
        library.impl(f"{name}_backward", torchs_backward, "CPU", allow_override=True)
        monkeypatch.setattr(sdpa, "of_torch", twins.flash_backward)
        yield
        sdpa.disable_sdpa()


def draw(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.randn(*shape).to(dtype)


def call(*args: Any, **others: Any) -> tuple[Any, ...]:
    found: tuple[Any, ...] = aten._scaled_dot_product_flash_attention(*args, **others)
    return found


def is_torchs(found: tuple[Any, ...]) -> bool:
    return bool((found[0] == 7).all())


def test_before_during_and_after() -> None:
    q, k = draw(2, 4, 8, 16), draw(2, 2, 8, 16)
    assert is_torchs(call(q, k, k))
    with sdpa.enable_sdpa():
        assert torch.nn.attention.current_flash_attention_impl() == "fa_tune"
        out, lse, *rest = call(q, k, k, 0.0, True, scale=0.5)
        turned = (t.transpose(1, 2) for t in (q, k, k))
        right, right_lse = twins.fwd_lse(*turned, True, False, 0.5)
        assert torch.equal(out, right.transpose(1, 2))
        assert torch.equal(lse, right_lse)
        assert out.stride() == torch.empty_like(q).stride()
        assert rest[2:4] == [8, 8]
        with sdpa.enable_sdpa():
            pass
        assert not is_torchs(call(q, k, k)), "an inner context ends what it did not begin"
    assert torch.nn.attention.current_flash_attention_impl() is None
    assert is_torchs(call(q, k, k))
    sdpa.disable_sdpa()


@pytest.mark.parametrize("transposed", [False, True])
def test_results_lie_as_torch_says(transposed: bool) -> None:
    q = draw(2, 8, 4, 16).transpose(1, 2) if transposed else draw(2, 4, 8, 16)
    with sdpa.enable_sdpa():
        out = call(q, q, q)[0]
    with torch.device("meta"):
        expected = aten._scaled_dot_product_flash_attention(*(q.to("meta"),) * 3)[0]
    assert out.stride() == expected.stride()


def odd_rows() -> torch.Tensor:
    return draw(2, 4, 8, 17)[..., :16]


@pytest.mark.parametrize(
    ("reason", "tensors", "options"),
    [
        ("dropout", [draw(2, 4, 8, 16)] * 3, {"dropout_p": 0.1}),
        ("debug mask", [draw(2, 4, 8, 16)] * 3, {"return_debug_mask": True}),
        ("neither fp16 nor bf16", [draw(2, 4, 8, 16, dtype=torch.float32)] * 3, {}),
        ("a scale of 1e-35", [draw(2, 4, 8, 16)] * 3, {"scale": 1e-35}),
        ("16 bytes", [odd_rows()] * 3, {}),
        ("nothing to attend", [draw(0, 4, 8, 16)] * 3, {}),
        ("do not divide", [draw(2, 4, 8, 16), *[draw(2, 3, 8, 16)] * 2], {}),
    ],
)
def test_what_is_not_ours_is_torchs_and_told_once(
    reason: str, tensors: list[torch.Tensor], options: dict[str, Any]
) -> None:
    with sdpa.enable_sdpa(), pytest.warns(fallback_warning.FallbackWarning, match=reason):
        assert is_torchs(call(*tensors, **options))
    with sdpa.enable_sdpa(), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert is_torchs(call(*tensors, **options))


@pytest.mark.parametrize("scale", [None, 0.3, -0.3, 0.0])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
def test_any_scale_is_right_and_has_gradients(
    scale: float | None, causal: bool, transposed: bool
) -> None:
    """FlashAttention 2 takes the largest product for the largest score."""
    shape = (2, 8, 4, 16) if transposed else (2, 4, 8, 16)
    leaves = [torch.randn(shape, dtype=torch.float64) for _ in "qkv"]
    three = [(t.transpose(1, 2) if transposed else t).half().requires_grad_() for t in leaves]
    exact = [t.detach().double().requires_grad_() for t in three]
    with sdpa.enable_sdpa():
        out, lse, *_ = call(*three, 0.0, causal, scale=scale)
        out.double().sin().sum().backward()
    right, rows = twins.defined(*(t.transpose(1, 2) for t in exact), Traits(causal, scale=scale))
    right.sin().sum().backward()
    assert torch.allclose(out.double(), right.transpose(1, 2), atol=4e-3)
    assert torch.allclose(lse.double(), rows, atol=4e-3)
    for mine, other in zip(three, exact, strict=True):
        assert mine.grad is not None
        assert other.grad is not None
        assert torch.allclose(mine.grad.double(), other.grad, atol=2e-2)


def test_gradients_are_torchs_with_dropout_and_lie_as_torch_says() -> None:
    q, seed = draw(2, 4, 8, 16).requires_grad_(), draw(2, 4, 8, 16)
    k = draw(2, 4, 2, 8, 16)[:, :, 0].requires_grad_()
    with sdpa.enable_sdpa(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for dropout_p, sevens in ((0.1, True), (0.0, False)):
            out, lse, *_ = call(q, k, k, dropout_p)
            given = (seed, q, k, k, out, lse, None, None, 8, 8, dropout_p, False, lse, lse)
            grads = aten._scaled_dot_product_flash_attention_backward(*given)
            assert [bool((t == 7).all()) for t in grads] == [sevens] * 3
            expected = [torch.empty_like(t).stride() for t in (q, k, k)]
            assert [t.stride() for t in grads] == expected
    q, *_ = (t.transpose(1, 2) for t in draw(2, 8, 3, 4, 16).unbind(2))
    grad = torch.empty(2, 8, 4, 16, dtype=q.dtype).transpose(1, 2)
    assert sdpa._like(grad, q) is grad


def test_nothing_is_said_when_it_is_enabled() -> None:
    child = """
import torch
from fa_tune.op import sdpa
aten, name = torch.library.Library("aten", "IMPL"), "_scaled_dot_product_flash_attention"
sdpa.Override.__init__.__defaults__ = ("CPU",)
for end in ("", "_backward"):
    aten.impl(name + end, lambda *_: None, "CPU")
with sdpa.enable_sdpa():
    pass
"""
    done = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_no_kernel_runs_is_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def refuse(*_: object) -> None:
        asked.append(1)
        raise RuntimeError("NoUsableVariant: no kernel runs it")

    monkeypatch.setattr(sdpa, "_fwd_out", refuse)
    q = draw(2, 4, 8, 16)
    with sdpa.enable_sdpa():
        with pytest.warns(fallback_warning.FallbackWarning, match="no kernel runs it"):
            assert is_torchs(call(q, q, q))
        assert is_torchs(call(q, q, q))
        assert len(asked) == 1, "asked again for what nothing runs"
        assert is_torchs(call(q, q, q, 0.0, True))
    assert len(asked) == 2, "another mask is another kernel"


def test_another_implementation_is_active_again_afterwards() -> None:
    class Other:
        def remove(self) -> None:
            pass

    torch.nn.attention.register_flash_attention_impl("other", register_fn=Other)
    torch.nn.attention.activate_flash_attention_impl("other")
    try:
        with sdpa.enable_sdpa():
            assert torch.nn.attention.current_flash_attention_impl() == "fa_tune"
        assert torch.nn.attention.current_flash_attention_impl() == "other"
    finally:
        torch.nn.attention.restore_flash_attention_impl()


def test_compiled_graphs_follow() -> None:
    torch.compiler.reset()
    q = draw(2, 4, 8, 16)
    run = torch.compile(lambda t: call(t, t, t)[0] + 1, fullgraph=True, backend="aot_eager")
    with sdpa.enable_sdpa():
        ours = run(q)
        assert torch.allclose(ours, call(q, q, q)[0] + 1, atol=1e-3)
    assert (run(q) == 8).all()


def test_a_torch_without_flash_attention_is_told_of_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_kernel(name: str, key: str) -> None:
        raise RuntimeError(f"no kernel for {key} for {name}\nand a trace")

    monkeypatch.setattr(torch.library, "get_kernel", no_kernel)
    with pytest.raises(ToolMissing) as told:
        sdpa.enable_sdpa()
    assert "\n" not in str(told.value)
