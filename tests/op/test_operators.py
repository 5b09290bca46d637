"""The operators' schemas and fakes, compiled graphs and gradients, on the CPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.hooks import register
from fa_tune.op import attention, backward, products
from fa_tune.op.backward import Mask
from fa_tune.op.operands import Done, Lengths
from fa_tune.op.packed import packed_attention
from fa_tune.op.traits import Traits
from tests.op import twins

MASKS = ((False, False), (True, False), (True, True))


pytestmark = pytest.mark.usefixtures("twins_on_the_cpu")


def draw(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.randn(*shape).to(dtype)


def test_schemas_and_fakes_are_true() -> None:
    q, k, v = draw(2, 10, 4, 16), draw(2, 7, 2, 16), draw(2, 7, 2, 16)
    rest, ops = (True, True, None), torch.ops.fa_tune
    for one in (ops.fwd, ops.fwd_lse):
        torch.library.opcheck(one.default, (q, k, v, *rest))
    room, rows = torch.empty_like(q), torch.empty(2, 4, 10)
    torch.library.opcheck(ops.fwd_out.default, (q, k, v, room, rows, *rest))
    torch.library.opcheck(ops.fwd_out.default, (q, k, v, room, None, *rest))
    out, lse = ops.fwd_lse(q, k, v, *rest)
    torch.library.opcheck(ops.bwd.default, (q, q, k, v, out, lse, None, *rest))
    q, k, v = draw(2, 10, 4, 16), draw(2, 7, 2, 16), draw(2, 7, 2, 8)
    ops = torch.ops.fa_tune
    for one in (ops.fwd, ops.fwd_lse):
        torch.library.opcheck(one.default, (q, k, v, False, False, None))
    assert attention(q, k, v).shape == (2, 10, 4, 8)
    room = draw(2, 10, 4, 8)
    assert attention(q, k, v, out=room) is room
    _, lse = attention(q, k, v, out=room, return_lse=True)
    torch.library.opcheck(ops.bwd.default, (room, q, k, v, room, lse, None, False, False, None))
    q, k, ops = draw(2, 10, 4, 16), draw(2, 7, 2, 16), torch.ops.fa_tune
    traits = Traits(False, True, 0.3, 3, 2, torch.randn(4), 1.5, torch.rand(2, 4))
    torch.library.opcheck(ops.scored_fwd.default, (q, k, k, *traits.scored))
    room, rows = torch.empty_like(q), torch.empty(2, 4, 10)
    torch.library.opcheck(ops.scored_fwd_out.default, (q, k, k, room, rows, *traits.scored))
    out, lse = ops.scored_fwd_lse(q, k, k, *traits.scored)
    torch.library.opcheck(
        ops.bwd.default, (q, q, k, k, out, lse, out[..., 0].transpose(1, 2).float(), *traits)
    )
    cum_q, cum_kv = (torch.tensor(c).int() for c in ([0, 3, 8], [0, 7, 9]))
    q, k, v = draw(8, 4, 16), draw(9, 2, 16), draw(9, 2, 8)
    lengths, ops = (cum_q, cum_kv, 5, 7), torch.ops.fa_tune
    room, rows = draw(8, 4, 8), torch.empty(4, 8)
    for traits in (Traits(), Traits(True, sink=torch.randn(4), alibi_slopes=torch.rand(2, 4))):
        for one in (ops.packed_fwd, ops.packed_fwd_lse):
            torch.library.opcheck(one.default, (q, k, v, *lengths, *traits.scored))
    for lse in (rows, None):
        given = (q, k, v, *lengths, room, lse, *traits.scored)
        torch.library.opcheck(ops.packed_fwd_out.default, given)
    out, lse = ops.packed_fwd_lse(q, k, v, *lengths, *traits.scored)
    given = (room, q, k, v, out, lse, None, *lengths, *traits.scored)
    torch.library.opcheck(ops.packed_bwd.default, given)
    hook = twins.hook("s - b", lambda s, batch, head, query, key: s - batch)
    hooked = Traits(True, score_hook=hook)
    for one in (ops.hooked_packed_fwd, ops.hooked_packed_fwd_lse):
        torch.library.opcheck(one.default, (q, k, v, *lengths, *hooked))
    given = (q, k, v, *lengths, room, rows, *hooked)
    torch.library.opcheck(ops.hooked_packed_fwd_out.default, given)


@pytest.mark.parametrize("d_v", [8, 24])
@pytest.mark.parametrize(("causal", "bottom_right"), MASKS)
def test_gradients_with_values_of_another_head_dimension(
    d_v: int, causal: bool, bottom_right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's kernels take one head dimension for all."""

    def alike(done: Done, mask: Mask) -> Any:
        assert len({t.shape[3] for t in done[:5]}) == 1
        return twins.flash_backward(done, mask)

    monkeypatch.setattr(backward, "_flash2", alike)
    monkeypatch.setattr(backward, "_suits_cudnn", lambda *_: False)
    torch.manual_seed(0)
    traits = Traits(causal, bottom_right)
    q, k = (draw(2, n, h, 16, dtype=torch.float64) for n, h in ((9, 4), (7, 2)))
    v, seed = draw(2, 7, 2, d_v, dtype=torch.float64), draw(2, 9, 4, d_v, dtype=torch.float64)
    out, lse = twins.fwd_lse(q, k, v, *traits)
    found = backward.gradients(Done(seed, q, k, v, out, lse), traits)
    right = grads(lambda *t: twins.defined(*t, traits)[0], (q, k, v), seed)
    for mine, exact in zip(found, right, strict=False):
        assert mine.shape == exact.shape
        assert torch.allclose(mine, exact, atol=1e-6)


def test_fakes_of_cuda_tensors_need_no_gpu() -> None:
    with FakeTensorMode():
        q = torch.empty(2, 10, 4, 64, dtype=torch.float16, device="cuda").transpose(1, 2)
        k = torch.empty(2, 7, 5, 64, dtype=torch.float16, device="cuda").transpose(1, 2)
        out, lse = attention(q, k, k, return_lse=True)
    assert (out.shape, out.dtype, out.device.type) == (q.shape, torch.float16, "cuda")
    assert out.is_contiguous()
    assert (lse.shape, lse.dtype) == ((2, 10, 4), torch.float32)


def block(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    """Nothing but attention, so that inductor has nothing to compile in C++."""
    return attention(q, k, v, causal=True, return_lse=True)


@pytest.mark.parametrize(("backend", "dynamic"), [("aot_eager", False), ("inductor", True)])
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


WINDOWS = ((None, None), (3, None), (None, 2), (2, 1), (0, 0), (4, 12), (30, 0))


@pytest.mark.parametrize(("n_q", "n_kv"), LENGTHS)
@pytest.mark.parametrize(
    ("window", "scores"),
    [
        *itertools.product(WINDOWS, ("masks", "all")),
        *itertools.product(WINDOWS[:2], ("sink", "softcap", "alibi")),
    ],
)
def test_gradients_of_all_traits(
    n_q: int, n_kv: int, window: tuple[int | None, int | None], scores: str
) -> None:
    """In fp64, against autograd through the scores; by torch's passes and by products of a few rows
    at a time, which must agree where both are used."""
    torch.manual_seed(0)
    q, seed = (draw(2, n_q, 4, 8, dtype=torch.float64) for _ in "qg")
    k, v = (draw(2, n_kv, 2, 8, dtype=torch.float64) for _ in "kv")
    more = {
        "sink": torch.randn(4) if scores in ("sink", "all") else None,
        "alibi_slopes": {"alibi": torch.rand(4), "all": torch.rand(2, 4)}.get(scores),
    }
    names = [name for name, tensor in more.items() if tensor is not None]
    tensors = (q, k, v, *(more[name] for name in names))
    softcap = 1.5 if scores in ("softcap", "all") else None
    for causal, bottom_right in MASKS:
        aligned = causal or window != (None, None) or more["alibi_slopes"] is not None
        traits = Traits(
            causal, (bottom_right or n_q % 2 == 0) and aligned, None, *window, softcap=softcap
        )

        def plain(*given: Any, traits: Traits = traits) -> torch.Tensor:
            own = dict(zip(names, given[3:], strict=True))
            return twins.defined(*given[:3], traits._replace(**own))[0]

        def ours(*given: Any, traits: Traits = traits) -> Any:
            own = dict(zip(names, given[3:], strict=True))
            return attention(*given[:3], **traits._replace(**own).of_attention)

        right = grads(plain, tensors, seed)
        for found, exact in zip(grads(ours, tensors, seed), right, strict=True):
            assert torch.allclose(found.double(), exact.double(), atol=2e-5)
        traits = traits._replace(**more)
        done = Done(seed, q, k, v, *twins.fwd_lse(q, k, v, *traits))
        by_products = products.gradients(done, traits, at_once=50)
        for found, exact in zip(by_products[:3], right[:3], strict=True):
            assert torch.allclose(found, exact, atol=2e-5)


def test_an_accuracy_changes_the_kernel_alone() -> None:
    q, k, v = (torch.randn(2, 9, heads, 16, requires_grad=True) for heads in (4, 2, 2))
    seed = torch.randn(2, 9, 4, 16)

    def exact(*three: Any) -> Any:
        return attention(*three, causal=True, accuracy="exact")

    fast = partial(attention, causal=True, accuracy="fast")
    right = grads(fast, (q, k, v), seed)
    for way in (exact, torch.compile(exact, backend="aot_eager", fullgraph=True)):
        assert torch.equal(way(q, k, v), fast(q, k, v))
        for found, expected in zip(grads(way, (q, k, v), seed), right, strict=True):
            assert torch.equal(found, expected)
    with pytest.raises(InvalidConfig, match="fast or exact"):
        attention(q, k, v, accuracy="best")


def test_autocast_changes_no_gradient_by_products() -> None:
    q, k, v, g = (torch.randn(2, 9, heads, 16) for heads in (4, 2, 2, 4))
    hook = twins.hook("2 * s * s", lambda score, *_: torch.einsum("...,...->...", 2 * score, score))
    traits = Traits(True, softcap=5.0, score_hook=hook)
    out, lse = twins.fwd_lse(q, k, v, *traits)
    done = Done(g, q, k, v, out, lse)
    expected = products.gradients(done, traits)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = products.gradients(done, traits)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


class Nothing(TorchDispatchMode):
    """Does as without it."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("modes", [(Nothing,), (partial(FlopCounterMode, display=False), Nothing)])
@pytest.mark.parametrize("packed", [False, True])
def test_score_hooks_have_gradients_below_dispatch_modes(
    modes: tuple[Callable[[], Any], ...], packed: bool
) -> None:
    """There autograd records nothing unless it is told to."""
    torch.manual_seed(0)
    hook = twins.hook("s * s * b", lambda s, batch, *_: s * s * batch)
    t = [draw(2, 6, 4, 8).requires_grad_() for _ in "qkv"]
    cum = torch.tensor([0, 6, 12], dtype=torch.int32)

    def found() -> tuple[torch.Tensor, ...]:
        if packed:
            rows = (one.flatten(0, 1) for one in t)
            out, _ = packed_attention(*rows, Lengths(cum, cum, 6, 6), Traits(score_hook=hook))
        else:
            out = attention(*t, score_hook=hook)
        return torch.autograd.grad(out.sum(), t)

    plain = found()
    with ExitStack() as stack:
        for mode in modes:
            stack.enter_context(mode())
        assert all(map(torch.equal, found(), plain))
    assert all(one.any() for one in plain)


@pytest.mark.parametrize("given", ["0" * 16, "__device__ float\nscore_hook(float s) { return s; }"])
@pytest.mark.parametrize("wants_grad", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_a_score_hook_that_was_never_registered_ends_in_one_line(
    given: str, wants_grad: bool, packed: bool
) -> None:
    q, cum = draw(1, 5, 2, 8).requires_grad_(wants_grad), torch.tensor([0, 5], dtype=torch.int32)

    def called(q: torch.Tensor) -> Any:
        if packed:
            rows, lengths = q.flatten(0, 1), Lengths(cum, cum, 5, 5)
            return packed_attention(rows, rows, rows, lengths, Traits(score_hook=given))[0]
        return attention(q, q, q, score_hook=given)

    with pytest.raises(InvalidConfig) as caught:
        called(q)
    assert "\n" not in str(caught.value)
    with pytest.raises(InvalidConfig):
        torch.compile(called, backend="eager", fullgraph=True)(q)


def test_a_score_hook_needs_its_torch_function_for_gradients_alone() -> None:
    text = "__device__ float score_hook(float s, int b, int h, int q, int k) { return s + 1; }"
    without, q, rows = register(text), draw(1, 5, 2, 8), draw(5, 2, 8).requires_grad_()
    cum = torch.tensor([0, 2, 5], dtype=torch.int32)
    lengths, traits = Lengths(cum, cum, 3, 3), Traits(score_hook=without)
    with pytest.raises(InvalidConfig, match="without its torch function"):
        packed_attention(rows, rows, rows, lengths, traits)
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(twins, "twin_of", lambda digest: lambda score, *_: score + 1)
        found = packed_attention(rows, rows, rows, lengths, traits, return_lse=True)
        plain = packed_attention(rows, rows, rows, lengths, Traits(), return_lse=True)
        for mine, other in zip(found, plain, strict=True):
            assert mine.shape == other.shape
        assert torch.allclose(found[0], plain[0], atol=1e-6)
        assert torch.allclose(found[1], plain[1] + 1, atol=1e-6)
        leaf = q.requires_grad_()
        assert attention(leaf, leaf, leaf, score_hook=without).shape == q.shape


def masked(q: torch.Tensor, k: torch.Tensor, sink: torch.Tensor) -> Any:
    slopes = torch.full((4,), 0.1)
    return attention(q, k, k, window=(4, 0), softcap=5.0, sink=sink, alibi_slopes=slopes) * 2


def packed(q: torch.Tensor, k: torch.Tensor, sink: torch.Tensor) -> Any:
    cum = (torch.arange(0, 2 * len(t) * t.shape[1] // 2 + 1, t.shape[1]).int() for t in (q, k))
    lengths = Lengths(*cum, q.shape[1], k.shape[1])
    out, _ = packed_attention(
        *(t.flatten(0, 1) for t in (q, k, k)), lengths, Traits(True, sink=sink)
    )
    return out * 2


@pytest.mark.parametrize("run", [masked, packed])
@pytest.mark.parametrize("dynamic", [False, True])
def test_no_graph_breaks_with_traits(run: Callable[..., Any], dynamic: bool) -> None:
    torch.compiler.reset()
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for n in (10, 13) if dynamic else (10,):
        q, k = draw(2, n, 4, 16), draw(2, n + 3, 2, 16)
        sink = torch.randn(4)
        assert torch.allclose(compiled(q, k, sink), run(q, k, sink), atol=2e-3)
        right = grads(run, (q, k, sink), torch.ones_like(run(q, k, sink)))
        found = grads(compiled, (q, k, sink), torch.ones_like(run(q, k, sink)))
        for mine, exact in zip(found, right, strict=True):
            assert torch.allclose(mine, exact, atol=1e-2)


def test_a_window_of_a_length_that_is_not_fixed_is_compiled() -> None:
    def run(q: torch.Tensor) -> Any:
        return attention(q, q, q, window=(q.shape[1] - 2, 0)) * 2

    torch.compiler.reset()
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager", dynamic=True)
    for n in (10, 13):
        q = draw(2, n, 4, 16)
        assert torch.allclose(compiled(q), run(q), atol=2e-3)


def test_a_gradient_is_never_lost() -> None:
    tensors = [draw(1, 6, 2, 16) for _ in range(3)]
    for wanted in itertools.product((False, True), repeat=3):
        q, k, v = (t.detach().requires_grad_(w) for t, w in zip(tensors, wanted, strict=True))
        out, lse = attention(q, k, v, return_lse=True)
        assert out.requires_grad == any(wanted)
        assert lse.requires_grad == out.requires_grad
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
    expected = twins.fwd_lse(q, k, k)
    for found in (out, made):
        assert torch.equal(found, expected[0])
    assert torch.equal(rows, expected[1])
