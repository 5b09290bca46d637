"""The operators' schemas and fakes, compiled graphs and gradients, on the CPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if not TYPE_CHECKING:
    pytest.importorskip("torch", reason="torch is not installed: no operators")

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from fa_tune.core.errors import InvalidConfig
from fa_tune.op import attention, backward
from tests.op import twins

MASKS = ((False, False), (True, False), (True, True))


@pytest.fixture(autouse=True, scope="module")
def on_the_cpu() -> Iterator[None]:
    with twins.registered():
        yield


def draw(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.randn(*shape).to(dtype)


@pytest.mark.parametrize(("causal", "bottom_right"), MASKS)
def test_schemas_and_fakes_are_true(causal: bool, bottom_right: bool) -> None:
    q, k, v = draw(2, 10, 4, 16), draw(2, 7, 2, 16), draw(2, 7, 2, 16)
    rest = (causal, bottom_right, None)
    ops = torch.ops.fa_tune
    for one in (ops.fwd, ops.fwd_lse):
        torch.library.opcheck(one.default, (q, k, v, *rest))
    room, rows = torch.empty_like(q), torch.empty(2, 4, 10)
    torch.library.opcheck(ops.fwd_out.default, (q, k, v, *rest, room, rows))
    torch.library.opcheck(ops.fwd_out.default, (q, k, v, *rest, room, None))
    out, lse = ops.fwd_lse(q, k, v, *rest)
    torch.library.opcheck(ops.bwd.default, (q, q, k, v, out, lse, *rest))


def test_schemas_and_fakes_with_values_of_another_head_dimension() -> None:
    q, k, v = draw(2, 10, 4, 16), draw(2, 7, 2, 16), draw(2, 7, 2, 8)
    ops = torch.ops.fa_tune
    for one in (ops.fwd, ops.fwd_lse):
        torch.library.opcheck(one.default, (q, k, v, False, False, None))
    assert attention(q, k, v).shape == (2, 10, 4, 8)
    room = draw(2, 10, 4, 8)
    assert attention(q, k, v, out=room) is room
    _, lse = attention(q, k, v, out=room, return_lse=True)
    torch.library.opcheck(ops.bwd.default, (room, q, k, v, room, lse, False, False, None))


@pytest.mark.parametrize("d_v", [8, 24])
@pytest.mark.parametrize(("causal", "bottom_right"), MASKS)
def test_gradients_with_values_of_another_head_dimension(
    d_v: int, causal: bool, bottom_right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's kernels take one head dimension for all."""

    def alike(*given: Any) -> Any:
        assert len({t.shape[3] for t in given[:5]}) == 1
        return twins.flash_backward(*given)

    monkeypatch.setattr(backward, "_flash2", alike)
    monkeypatch.setattr(backward, "_suits_cudnn", lambda *_: False)
    torch.manual_seed(0)
    q, k = (draw(2, n, h, 16, dtype=torch.float64) for n, h in ((9, 4), (7, 2)))
    v, seed = draw(2, 7, 2, d_v, dtype=torch.float64), draw(2, 9, 4, d_v, dtype=torch.float64)
    out, lse = twins.fwd_lse(q, k, v, causal, bottom_right, None)
    found = backward.gradients(
        backward.of_torch, seed, q, k, v, out, lse, causal, bottom_right, None
    )

    def plain(*tensors: torch.Tensor) -> torch.Tensor:
        scores = twins.scores_of(*tensors[:2], causal, bottom_right, None)
        blind = scores.isneginf().all(-1, keepdim=True)
        weights = scores.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)
        return torch.einsum("bhqk,bkhd->bqhd", weights, tensors[2].repeat_interleave(2, 2))

    for mine, right in zip(found, grads(plain, (q, k, v), seed), strict=True):
        assert mine.shape == right.shape
        assert torch.allclose(mine, right, atol=1e-6)


def test_fakes_of_cuda_tensors_need_no_gpu() -> None:
    with FakeTensorMode():
        q = torch.empty(2, 10, 4, 64, dtype=torch.float16, device="cuda").transpose(1, 2)
        k = torch.empty(2, 7, 5, 64, dtype=torch.float16, device="cuda").transpose(1, 2)
        out, lse = attention(q, k, k, return_lse=True)
    assert (out.shape, out.dtype, out.device.type) == (q.shape, torch.float16, "cuda")
    assert out.is_contiguous()
    assert (lse.shape, lse.dtype) == ((2, 10, 4), torch.float32)


def block(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    out, lse = attention(q * 1.5, k, v + 1, causal=True, return_lse=True)
    return out * 2, lse


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_no_graph_breaks(backend: str, dynamic: bool) -> None:
    torch.compiler.reset()
    run = torch.compile(block, fullgraph=True, backend=backend, dynamic=dynamic)
    for n in (10, 13) if dynamic else (10,):
        q, k = draw(2, n, 4, 16).requires_grad_(), draw(2, n + 3, 2, 16)
        with torch.no_grad():
            for found, expected in zip(run(q, k, k), block(q, k, k), strict=True):
                assert torch.allclose(found, expected, atol=2e-3)
        run(q, k, k)[0].sum().backward()
        found, q.grad = q.grad, None
        block(q, k, k)[0].sum().backward()
        assert found is not None
        assert q.grad is not None
        assert torch.allclose(found, q.grad, atol=1e-2)


def grads(run: Callable[..., torch.Tensor], tensors: Any, seed: torch.Tensor) -> list[Any]:
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    run(*leaves).backward(seed)
    return [t.grad for t in leaves]


LENGTHS = ((8, 8), (5, 9), (9, 5), (20, 4), (1, 6))


@pytest.mark.parametrize(("n_q", "n_kv"), LENGTHS)
@pytest.mark.parametrize(("causal", "bottom_right"), MASKS)
def test_gradients(n_q: int, n_kv: int, causal: bool, bottom_right: bool) -> None:
    """In fp64, against autograd through the scores; rows without keys, fewer kv heads."""
    torch.manual_seed(0)
    q = draw(2, n_q, 4, 16, dtype=torch.float64)
    k, v = (draw(2, n_kv, 2, 16, dtype=torch.float64) for _ in range(2))
    seed = draw(2, n_q, 4, 16, dtype=torch.float64)

    def plain(*tensors: torch.Tensor) -> torch.Tensor:
        scores = twins.scores_of(*tensors[:2], causal, bottom_right, 0.3)
        values = tensors[2].repeat_interleave(2, 2)
        blind = scores.isneginf().all(-1, keepdim=True)
        weights = scores.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)
        return torch.einsum("bhqk,bkhd->bqhd", weights, values)

    def ours(*tensors: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = attention(
            *tensors, causal=causal, bottom_right=bottom_right, softmax_scale=0.3
        )
        return found

    for found, right in zip(
        grads(ours, (q, k, v), seed), grads(plain, (q, k, v), seed), strict=True
    ):
        assert torch.allclose(found, right, atol=1e-6)  # the log-sum-exp is fp32


def test_a_gradient_is_never_lost() -> None:
    tensors = [draw(1, 6, 2, 16) for _ in range(3)]
    for wanted in itertools.product((False, True), repeat=3):
        q, k, v = (t.detach().requires_grad_(w) for t, w in zip(tensors, wanted, strict=True))
        out, lse = attention(q, k, v, return_lse=True)
        assert out.requires_grad == any(wanted)
        assert not lse.requires_grad
        if any(wanted):
            out.sum().backward()
            assert [t.grad is not None for t in (q, k, v)] == list(wanted)
            with pytest.raises(InvalidConfig, match="no gradient"):
                attention(q, k, v, out=torch.empty_like(q))
    with torch.no_grad():
        assert not attention(q, k, v).requires_grad


def test_checkpointing_computes_the_same_gradient() -> None:
    q = draw(1, 6, 2, 16).requires_grad_()
    checkpoint(lambda t: attention(t, t, t), q, use_reentrant=False).sum().backward()
    found, q.grad = q.grad, None
    attention(q, q, q).sum().backward()
    assert found is not None
    assert torch.equal(found, q.grad)  # type: ignore[arg-type]


def test_room_that_is_given_is_written() -> None:
    q, k = draw(2, 5, 4, 16), draw(2, 5, 2, 16)
    out, lse = torch.empty_like(q), torch.empty(2, 4, 5)
    assert attention(q, k, k, out=out) is out
    made, rows = attention(q, k, k, lse=lse, return_lse=True)
    assert rows is lse
    expected = twins.fwd_lse(q, k, k, False, False, None)
    for found in (out, made):
        assert torch.equal(found, expected[0])
    assert torch.equal(rows, expected[1])
