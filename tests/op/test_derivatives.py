"""Derivatives of all kinds, on the CPU in fp64 against those of torch through the scores."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad

from fa_tune.core.errors import NoUsableVariant
from fa_tune.op import (
    FallbackWarning,
    api,
    attention,
    backward,
    flash2,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
    odd_heads,
    packed,
)
from fa_tune.op.backward import Mask, of_torch
from fa_tune.op.operands import Done, Lengths
from fa_tune.op.packed import packed_attention
from fa_tune.op.traits import Traits
from tests.op import twins

Tensors = tuple[torch.Tensor, ...]
Run = Callable[..., Any]
CUM_Q, CUM_KV = (torch.tensor(c, dtype=torch.int32) for c in ([0, 5, 5, 8, 9], [0, 7, 9, 9, 13]))
LENGTHS = Lengths(CUM_Q, CUM_KV, 5, 7)
HOOK = twins.hook(
    "s", lambda s, batch, head, query, key: s * s / (2 + batch + head) - 0.1 * (query - key)
)
SCORES = {
    "masks": Traits(True),
    "all": Traits(True, scale=0.4, window_left=4, softcap=1.5),
    "window": Traits(window_left=2, window_right=1),
    "hook": Traits(window_left=3, window_right=2, score_hook=HOOK),
}


pytestmark = [
    pytest.mark.usefixtures("twins_on_the_cpu"),
    pytest.mark.filterwarnings("ignore"),  # vmap of what is not written for it is slow
]


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def problem(name: str, packed: bool) -> tuple[Run, Run, Tensors]:
    """Ours and the definition, of tensors; each gives (out, log-sum-exp)."""
    torch.manual_seed(0)
    traits, scored = SCORES[name], name == "all"
    more = (torch.randn(4), torch.rand(4)) if scored else ()
    q, k, v = (draw(9, 4, 8), draw(13, 2, 8), draw(13, 2, 6))
    if not packed:
        q, k, v = (t[None].repeat(2, 1, 1, 1) * draw(2, 1, 1, 1) for t in (q, k, v))

    def of(given: Tensors) -> Traits:
        return traits._replace(sink=given[3], alibi_slopes=given[4]) if scored else traits

    def ours(*given: torch.Tensor) -> Any:
        if packed:
            return packed_attention(*given[:3], LENGTHS, of(given), return_lse=True)
        return attention(*given[:3], return_lse=True, **of(given).of_attention)

    def plain(*given: torch.Tensor) -> Any:
        if not packed:
            return twins.defined(*given[:3], of(given))
        found = []
        for i, (rows, keys) in enumerate(
            zip(pairwise(CUM_Q.tolist()), pairwise(CUM_KV.tolist()), strict=True)
        ):
            three = (t[None, slice(*at)] for t, at in zip(given, (rows, keys, keys), strict=False))
            found.append(twins.defined(*three, of(given)._replace(bottom_right=True), i))
        return torch.cat([o[0] for o, _ in found]), torch.cat([lse[0] for _, lse in found], 1)

    return ours, plain, (q, k, v, *more)


def check(found: Any, right: Any) -> None:
    found, right = ((t,) if isinstance(t, torch.Tensor) else t for t in (found, right))
    assert len(found) == len(right)
    for mine, exact in zip(found, right, strict=True):
        assert mine is not None
        near = 4e-3 if mine.dtype == torch.half else 2e-5
        assert torch.allclose(mine.double(), exact.double(), atol=near)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", SCORES)
def test_forward_mode(name: str, packed: bool) -> None:
    ours, plain, tensors = problem(name, packed)
    tangents = tuple(torch.randn_like(t) for t in tensors)
    expected = torch.func.jvp(plain, tensors, tangents)[1]
    check(torch.func.jvp(ours, tensors, tangents)[1], expected)
    with torch.no_grad(), forward_ad.dual_level():
        duals = map(forward_ad.make_dual, tensors, tangents)
        check([forward_ad.unpack_dual(t).tangent for t in ours(*duals)], expected)
        untouched = ours(*tensors)
        assert all(forward_ad.unpack_dual(t).tangent is None for t in untouched)
        room = torch.empty(1, 3, 2, 8)
        assert attention(*(torch.ones(1, 3, 2, 8),) * 3, out=room) is room


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", SCORES)
def test_functions_of_torch_func(name: str, packed: bool) -> None:
    ours, plain, tensors = problem(name, packed)
    every = tuple(range(len(tensors)))

    def loss(run: Run) -> Run:
        def total(*given: torch.Tensor) -> torch.Tensor:
            out, lse = run(*given)
            seen = torch.where(lse.isinf(), 0.0, lse)
            return (out.double().sin().sum() + (seen.double() ** 2).sum()) / 10

        return total

    grads = [torch.func.grad(loss(run), every)(*tensors) for run in (ours, plain)]
    check(*grads)
    (_, pull), (_, right) = (torch.func.vjp(loss(run), *tensors) for run in (ours, plain))
    check(pull(torch.tensor(2.0).double()), right(torch.tensor(2.0).double()))
    stacked = tuple(torch.stack((t, t / 2)) for t in tensors)
    grads = [torch.vmap(torch.func.grad(loss(run), every))(*stacked) for run in (ours, plain)]
    if not packed:  # whose lengths a vmap of products cannot read
        check(*grads)
    grads = [
        torch.func.grad(lambda *t, run=run: torch.vmap(loss(run))(*t).sum(), every)(*stacked)
        for run in (ours, plain)
    ]
    check(*grads)
    rows = [
        torch.func.jacrev(lambda q, run=run: run(q, *tensors[1:])[0][..., 0, 0])(tensors[0])
        for run in (ours, plain)
    ]
    check(*rows)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("of_out", [False, True])
def test_gradients_through_the_log_sum_exp(name: str, packed: bool, of_out: bool) -> None:
    """By the passes of kernels where they are used, which know no gradient of it, and by
    products."""
    ours, plain, tensors = problem(name, packed)
    found = []
    for run in (ours, plain):
        leaves = [t.detach().clone().requires_grad_() for t in tensors]
        out, lse = run(*leaves)
        loss = (torch.where(lse.isinf(), 0.0, lse).double() ** 2).sum()
        loss = loss + (out.double() ** 2).sum() if of_out else loss
        found.append(torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True))
    check(*found)


@pytest.mark.parametrize("at_once", [2, flash2.MOST_SEQUENCES])
@pytest.mark.parametrize("name", ["masks", "hook"])
def test_rows_of_no_sequence_have_no_gradient(
    name: str, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first and behind the last; with more sequences than a grid has room for, too."""
    monkeypatch.setattr(flash2, "MOST_SEQUENCES", at_once)
    _, plain, tensors = problem(name, packed=True)
    pad = torch.nn.functional.pad
    longer = [pad(t, (0, 0, 0, 0, 2, 3), value=3.0).requires_grad_() for t in tensors]
    lengths = LENGTHS._replace(cum_q=CUM_Q + 2, cum_kv=CUM_KV + 2)
    out, lse = packed_attention(*longer, lengths, SCORES[name], return_lse=True)
    assert lse is not None
    seen = torch.where(lse.isinf(), 0.0, lse)
    (out.sin().sum() + (seen**2).sum() + out.sum()).backward()
    leaves = [t.requires_grad_() for t in tensors]
    right, rows = plain(*leaves)
    (right.sin().sum() + (torch.where(rows.isinf(), 0.0, rows) ** 2).sum() + right.sum()).backward()
    check(out, pad(right, (0, 0, 0, 0, 2, 3)))
    check([t.grad for t in longer], [pad(t.grad, (0, 0, 0, 0, 2, 3)) for t in leaves])  # type: ignore[arg-type]


def test_a_packed_batch_may_have_no_sequence() -> None:
    """Its rows are of none: nothing comes out, and no gradient goes in."""
    rows = [draw(3, 2, 8).requires_grad_() for _ in "qkv"]
    none = torch.zeros(1, dtype=torch.int32)
    out, lse = flash_attn_varlen_func(*rows, none, none, 1, 1, return_attn_probs=True)[:2]
    assert out.shape == rows[0].shape
    assert lse.shape == (2, 3)
    assert not out.any()
    out.sum().backward()
    assert not rows[0].grad.any()  # type: ignore[union-attr]
    done = Done(*(t.detach() for t in (rows[0], *rows, rows[0])), lse.detach(), None)
    for found in backward.packed_gradients(done, Lengths(none, none, 1, 1), Traits(True))[:3]:
        assert found.shape == rows[0].shape
        assert not found.any()
    q, k = draw(1, 1, 2, 16), draw(1, 4, 2, 16)
    with pytest.raises(NotImplementedError):
        torch.func.jvp(lambda t: flash_attn_with_kvcache(t, k, k, cache_seqlens=3), (q,), (q,))


plans: dict[Any, Any] = {}


def cudnn_backward(
    grad: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *others: Any, scale: Any = None
) -> Any:
    """What cuDNN computes of as many heads of keys as of queries, [batch, heads, seq_len, d].  As
    torch's, it reads O and its gradient by the strides that they had when it first saw these of
    Q, K and V."""
    *_, n_q, n_kv, dropout, is_causal = others
    strides = plans.setdefault(tuple(t.stride() for t in (q, k, v)), (grad.stride(), out.stride()))
    grad, out = (t.as_strided(t.shape, s) for t, s in zip((grad, out), strides, strict=True))
    assert (q.shape[1], n_q, n_kv, dropout) == (k.shape[1], q.shape[2], k.shape[2], 0.0)
    assert lse.shape == (*q.shape[:3], 1)
    turned = (t.transpose(1, 2) for t in (grad, q, k, v, out))
    right = 0 if is_causal else None
    found = twins.flash_backward(Done(*turned, lse[..., 0]), Mask(None, right, scale))
    return tuple(t.transpose(1, 2) for t in found)


@pytest.mark.parametrize("at_once", [1, 65535])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_cudnn_is_given_a_head_of_keys_for_each_of_queries(
    kv_heads: int, causal: bool, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is faster than FlashAttention 2 with groups; of more sequences than a grid has room
    for some at a time."""
    plans.clear()
    monkeypatch.setattr(flash2, "MOST_SEQUENCES", at_once)
    monkeypatch.setattr(backward, "_has_fast_cudnn", lambda device: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    q, (k, v) = draw(3, 64, 4, 8), (draw(3, 64, kv_heads, 8) for _ in "kv")
    traits = Traits(causal)
    seed = draw(3, 64, 4, 8)
    with torch.library._scoped_library("aten", "IMPL") as library:
        name = "_scaled_dot_product_cudnn_attention_backward"
        library.impl(name, cudnn_backward, "CPU", allow_override=True)
        done = Done(seed, q, k, v, *twins.fwd_lse(q, k, v, *traits))
        if kv_heads == 4:  # a program's own call, of an output that lies in another way
            by_heads = torch.empty(3, 4, 64, 8).stride()
            plans[tuple(t.transpose(1, 2).stride() for t in (q, k, v))] = (by_heads, by_heads)
        found = backward.gradients(done, traits, of_torch)[:3]
    leaves = [t.requires_grad_() for t in (q, k, v)]
    twins.defined(*leaves, traits)[0].backward(seed)
    check(found, [t.grad for t in leaves])


def gradients_of(*given: torch.Tensor) -> Tensors:
    *three, seed = (t.detach().clone().requires_grad_() for t in given)
    return torch.autograd.grad(attention(*three, causal=True), three, seed.detach())


@pytest.mark.parametrize(("d_head", "d_v"), [(40, 40), (64, 20), (20, 64)])
def test_head_dimensions_that_no_kernel_has_are_filled_up(
    d_head: int, d_v: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of tensors on a GPU, with one warning; results and gradients are those without."""
    q, k = draw(2, 5, 4, d_head).half(), draw(2, 7, 2, d_head).half()
    v, seed = draw(2, 7, 2, d_v).half(), draw(2, 5, 4, d_v).half()
    right = attention(q, k, v, causal=True, return_lse=True)
    gradients = gradients_of(q, k, v, seed)
    asked: list[torch.Size] = []
    forward, *others = api._PLAIN[1:]

    def refuses(*given: torch.Tensor) -> Any:
        asked.append(given[0].shape)
        if given[0].shape[-1] % 32 or given[2].shape[-1] % 32:
            raise RuntimeError("NoUsableVariant: no kernel runs it")
        return forward(*given)

    monkeypatch.setattr(api, "_PLAIN", (None, refuses, *others))
    monkeypatch.setattr(odd_heads, "known", set())
    with pytest.warns(FallbackWarning, match="zeros"):
        attention(q, k, v, causal=True, return_lse=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = attention(q, k, v, causal=True, return_lse=True)
    assert asked == [q.shape, (2, 5, 4, 64), (2, 5, 4, 64)], "asked again for what nothing runs"
    room, rows = torch.empty_like(right[0]), torch.empty_like(right[1])
    assert attention(q, k, v, causal=True, out=room, lse=rows, return_lse=True)[0] is room
    for mine in (found, (room, rows)):
        for one, other in zip(mine, right, strict=True):
            assert torch.allclose(one, other, atol=1e-3)
    for mine, other in zip(gradients_of(q, k, v, seed), gradients, strict=True):
        assert torch.allclose(mine, other, atol=4e-3)


def test_head_dimensions_of_packed_batches_are_filled_up(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = draw(9, 4, 40).half(), draw(13, 2, 40).half(), draw(13, 2, 20).half()
    right = packed_attention(q, k, v, LENGTHS, Traits(True), return_lse=True)
    forward = packed._SCORED[1]

    def refuses(*given: torch.Tensor) -> Any:
        if given[0].shape[-1] % 32 or given[2].shape[-1] % 32:
            raise NoUsableVariant("no kernel runs it")
        return forward(*given)

    monkeypatch.setattr(packed, "_SCORED", (None, refuses))
    monkeypatch.setattr(odd_heads, "known", set())
    for _ in range(2):
        check(packed_attention(q, k, v, LENGTHS, Traits(True), return_lse=True), right)


@pytest.mark.parametrize("d_v", [8, 16])
def test_half_precision_takes_the_gradient_of_the_log_sum_exp_to_16_bits(d_v: int) -> None:
    """Kernels subtract it with the sum of output times gradient, in fp32."""
    q, k = draw(2, 5, 4, 16).bfloat16(), draw(2, 7, 2, 16).bfloat16()
    v, out, grad = (draw(2, n, h, d_v).bfloat16() for n, h in ((7, 2), (5, 4), (5, 4)))
    of_lse = draw(2, 4, 5).float()
    alike, _ = backward._of_one_d_head(Done(grad, q, k, v, out, of_lse, of_lse), Mask())
    found = (alike.grad_out.double() * alike.out.double()).sum(-1)
    expected = (grad.double() * out.double()).sum(-1) - of_lse.double().transpose(1, 2)
    assert torch.allclose(found, expected, rtol=0, atol=2**-14)
