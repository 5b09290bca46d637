"""Gradients of the operators on a GPU: every check that is named; see `op_checks.main`."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from fa_tune.core.hooks import register
from fa_tune.op import attention, flash_attn_varlen_func, products
from fa_tune.op.operands import Lengths
from fa_tune.op.packed import packed_attention
from fa_tune.op.traits import Traits
from tests.gpu.op_checks import (
    captured,
    draw,
    grads,
    int32,
    main,
    options_of,
    packed_lengths,
    reference,
    some_traits,
)
from tests.gpu.oracle import same_bits
from tests.gpu.score_hooks import HOOKS


def with_tensors(traits: Traits) -> dict[str, torch.Tensor]:
    named = {"sink": traits.sink, "alibi_slopes": traits.alibi_slopes}
    return {name: tensor for name, tensor in named.items() if tensor is not None}


def problems() -> Iterator[tuple[torch.dtype, tuple[int, int], tuple[int, ...], Traits]]:
    """Types, head dimensions of Q and V, (batch, heads, kv heads, lengths), and traits."""
    kinds = ((torch.float16, (128, 128)), (torch.bfloat16, (64, 64)), (torch.bfloat16, (192, 128)))
    shapes = ((2, 4, 4, 256, 256), (2, 6, 2, 200, 333), (1, 4, 1, 333, 200), (1, 4, 2, 300, 64))
    plain = (Traits(), Traits(True), Traits(True, True))
    yield from (
        (*kind, shape, traits)
        for kind in (*kinds, (torch.float16, (64, 128)))
        for shape, traits in itertools.product(shapes, plain)
    )
    for kind, lengths in itertools.product(kinds, ((200, 333), (333, 200), (256, 256))):
        yield from ((*kind, (2, 4, 2, *lengths), traits) for traits in some_traits(4, 2))


def gradients() -> None:
    """Errors to fp64, of Q, K, V, sinks and slopes, at most twice those of torch's own attention
    with materialised scores."""
    for dtype, (d_head, d_v), (batch, heads, kv_heads, n_q, n_kv), traits in problems():
        q, seed = (draw(batch, n_q, heads, d, dtype=dtype) for d in (d_head, d_v))
        k, v = (draw(batch, n_kv, kv_heads, d, dtype=dtype) for d in (d_head, d_v))
        check_attention(q, k, v, seed, traits)


def check_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seed: torch.Tensor, traits: Traits
) -> None:
    """Gradients of `attention` where that of its output is `seed`."""
    more = with_tensors(traits)

    def plain(*t: Any) -> Any:
        return reference(*t[:3], traits._replace(**dict(zip(more, t[3:], strict=True))))

    def ours(*t: Any) -> Any:
        return attention(*t[:3], **options_of(traits), **dict(zip(more, t[3:], strict=True)))

    check_gradients((q, k, v, *more.values()), plain, ours, seed, (q.shape, k.shape, traits))


def check_gradients(tensors: Any, plain: Any, ours: Any, seed: torch.Tensor, said: Any) -> None:
    right = grads(plain, [t.double() for t in tensors], seed)
    torchs, found = grads(plain, list(tensors), seed), grads(ours, list(tensors), seed)
    q, k = tensors[:2]
    # A row with one key has a gradient of 0: what fp32 leaves of two equal numbers near the square
    # root of d_head, over all the rows that a key has.
    rows = q[..., 0].numel() / k.shape[-2]
    left = max(1e-5, 2.0**-20 * float(q.double().square().mean() * rows) ** 0.5)
    for number, (a, b, c) in enumerate(zip(found, torchs, right, strict=True)):
        error, allowed = (a - c).abs().max(), (b - c).abs().max()
        limit = 2 * allowed + 1e-3 * c.abs().max() + left
        assert error <= limit, f"{number} of {said}: {error} > {limit}"


def gradients_of_packed_batches() -> None:
    """The same, sequences of no queries and of no keys among them."""
    lengths = packed_lengths()
    for dtype, d_head, d_v in ((torch.float16, 128, 128), (torch.bfloat16, 192, 128)):
        for causal in (False, True):
            for name in ("", "window", "sink", "softcap", "alibi"):
                sink = (torch.randn(4, device="cuda"),) if name == "sink" else ()
                traits = Traits(
                    causal,
                    window_left=30 if name == "window" else None,
                    softcap=5.0 if name == "softcap" else None,
                    alibi_slopes=torch.rand(4, device="cuda") if name == "alibi" else None,
                )
                q, seed = draw(200, 4, d_head, dtype=dtype), draw(200, 4, d_v, dtype=dtype)
                k, v = (draw(140, 2, d, dtype=dtype) for d in (d_head, d_v))
                plain, ours = packed_runs(lengths, traits)
                check_gradients((q, k, v, *sink), plain, ours, seed, (d_v, traits, name))


Run = Callable[..., torch.Tensor]


def packed_runs(lengths: Lengths, traits: Traits) -> tuple[Run, Run]:
    """The reference and ours, as functions of Q, K, V and a sink if there is one."""

    def given(*t: Any) -> Traits:
        return traits._replace(sink=t[3] if len(t) > 3 else None)

    def plain(*t: Any) -> torch.Tensor:
        return packed_reference(*t[:3], lengths, given(*t))

    def ours(*t: Any) -> torch.Tensor:
        return packed_attention(*t[:3], lengths, given(*t))[0]

    return plain, ours


def gradients_elsewhere() -> None:
    """Under autocast, with checkpointing, with strided and expanded gradients; never detached."""
    q = draw(2, 128, 4, 64, dtype=torch.float32).requires_grad_()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = attention(q, q, q, causal=True)
    assert out.dtype == torch.bfloat16
    out.sum().backward()
    assert q.grad.dtype == torch.float32
    half = draw(2, 128, 4, 64).requires_grad_()
    checkpoint(lambda t: attention(t, t, t), half, use_reentrant=False).sum().backward()
    again = half.detach().clone().requires_grad_()
    attention(again, again, again).sum().backward()
    assert half.grad is not None
    assert again.grad is not None
    assert torch.allclose(half.grad, again.grad, atol=1e-3)
    out, lse = attention(again, again, again, return_lse=True)
    assert out.requires_grad
    assert lse.requires_grad == out.requires_grad


def score_hooks() -> None:
    """Values by the kernel, gradients by the function in torch; captured in a graph, too."""

    def bent(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
        return 20 * (score / 20).tanh() - 0.01 * (query - key).abs() * (1 + head)

    hook = register(
        """__device__ float score_hook(float score, int batch, int head, int query, int key) {
               const float distance = query < key ? key - query : query - key;
               return fa_tune::softcap(score, 20.f) - 0.01f * distance * (1 + head);
           }""",
        bent,
    )
    q, seed = draw(2, 200, 4, 128), draw(2, 200, 4, 128)
    k, v = draw(2, 333, 2, 128), draw(2, 333, 2, 128)

    def plain(*t: Any) -> Any:
        return reference(*t, Traits(True, True, score_hook=hook))

    def ours(*t: Any) -> Any:
        return attention(*t, causal=True, bottom_right=True, score_hook=hook)

    right = plain(*(t.double() for t in (q, k, v)))
    assert (ours(q, k, v) - right).abs().max() <= 2 * (plain(q, k, v) - right).abs().max() + 1e-4
    check_gradients((q, k, v), plain, ours, seed, "hook")
    expected = ours(q, k, v)
    graph, out = captured(lambda: ours(q, k, v))
    graph.replay()
    assert same_bits([out], [expected])


def packed_score_hooks() -> None:
    """The same of packed batches, by the operator and by FlashAttention's function."""
    lengths = packed_lengths()
    for dtype, d_head, late in ((torch.float16, 128, True), (torch.bfloat16, 64, False)):
        q, seed = draw(200, 4, d_head, dtype=dtype), draw(200, 4, d_head, dtype=dtype)
        k, v = draw(140, 2, d_head, dtype=dtype), draw(140, 2, d_head, dtype=dtype)
        for number, hook in enumerate(HOOKS):
            causal = (number >= len(HOOKS) // 2) == late
            traits = Traits(causal, score_hook=hook)
            plain, ours = packed_runs(lengths, traits)
            check_gradients((q, k, v), plain, ours, seed, (d_head, traits))
            right, torchs = plain(*(t.double() for t in (q, k, v))), plain(q, k, v)
            found, limit = ours(q, k, v), 2 * (torchs - right).abs().max() + 1e-3
            assert (found - right).abs().max() <= limit, (d_head, traits)
            same = flash_attn_varlen_func(q, k, v, *lengths, causal=causal, score_hook=hook)
            assert same_bits([same], [found])
    graph, out = captured(lambda: ours(q, k, v))
    graph.replay()
    assert same_bits([out], [ours(q, k, v)])


def packed_reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: Lengths, traits: Traits
) -> torch.Tensor:
    """`reference` of each sequence."""
    ends = [lengths.cum_q.tolist(), lengths.cum_kv.tolist()]
    outs = []
    for i in range(len(ends[0]) - 1):
        rows, keys = (slice(e[i], e[i + 1]) for e in ends)
        if rows.start < rows.stop:
            one = traits._replace(bottom_right=True)
            parts = (q[None, rows], k[None, keys], v[None, keys])
            outs.append(reference(*parts, one, first=i)[0])
    return torch.cat(outs)


def compiled_traits() -> None:
    """No graph break with traits and gradients, nor with packed batches."""
    lengths, sink = packed_lengths(), torch.randn(4, device="cuda")

    def masks(q: torch.Tensor, k: torch.Tensor, sink: torch.Tensor) -> Any:
        return attention(q[None], k[None], k[None], window=(50, 10), sink=sink, softcap=9.0)[0]

    def packed(q: torch.Tensor, k: torch.Tensor, sink: torch.Tensor) -> Any:
        return packed_attention(q, k, k, lengths, Traits(True, sink=sink))[0]

    for run in (masks, packed):
        tensors = [draw(200, 4, 64), draw(140, 2, 64), sink]
        compiled = torch.compile(run, fullgraph=True)
        assert same_bits([compiled(*tensors)], [run(*tensors)])
        seed = draw(200, 4, 64)
        for a, b in zip(grads(compiled, tensors, seed), grads(run, tensors, seed), strict=True):
            assert (a - b).abs().max() <= 1e-2 * b.abs().max()


def derivatives() -> None:
    """In forward mode, by a function of torch.func, through the log-sum-exp; and of grouped heads,
    which cuDNN has on heads of their own."""
    q, k = draw(2, 200, 4, 64, dtype=torch.float32), draw(2, 200, 2, 64, dtype=torch.float32)
    for traits in (Traits(True), Traits(True, softcap=5.0)):

        def plain(q: torch.Tensor, k: torch.Tensor, traits: Traits = traits) -> Any:
            return reference(q, k, k, traits)

        def ours(q: torch.Tensor, k: torch.Tensor, traits: Traits = traits) -> Any:
            return attention(q.half(), k.half(), k.half(), **options_of(traits))

        tangent = torch.randn_like(q)
        right = torch.func.jvp(lambda t, run=plain: run(t, k), (q,), (tangent,))[1]
        found = torch.func.jvp(lambda t, run=ours: run(t, k), (q,), (tangent,))[1]
        assert (found - right).abs().max() < 2e-2 * right.abs().max()
        right = torch.func.grad(lambda t, run=plain: run(t, k).sin().sum())(q)
        found = torch.func.grad(lambda t, run=ours: run(t, k).float().sin().sum())(q)
        assert (found - right).abs().max() < 2e-2 * right.abs().max()
        both = [t.half().requires_grad_() for t in (q, k)]
        _, lse = attention(both[0], both[1], both[1], return_lse=True, **options_of(traits))
        (lse**2).sum().backward()
        exact = [t.double().requires_grad_() for t in (q, k)]
        (products.forward(*exact, exact[1], traits)[1] ** 2).sum().backward()
        for mine, other in zip(both, exact, strict=True):
            assert mine.grad is not None
            assert (mine.grad - other.grad).abs().max() < 1e-2 * other.grad.abs().max()


def rows_of_no_sequence() -> None:
    """Zeros, of results and of gradients, in memory that had other numbers."""
    ends = int32(3, 100, 180)
    for d_head in (64, 128):
        for _ in range(3):
            three = [draw(500, h, d_head).requires_grad_() for h in (8, 2, 2)]
            _ = [torch.full((500, 8, d_head), torch.nan, device="cuda").half() for _ in range(4)]
            del _
            out = flash_attn_varlen_func(*three, ends, ends, 97, 97, causal=True)
            out.sum().backward()
            for tensor in (out, *(t.grad for t in three)):
                assert tensor.isfinite().all()
                assert not tensor[:3].any()
                assert not tensor[180:].any()


def many_sequences() -> None:
    """More than a grid has room for, dense and packed; fewer rows than sequences."""
    n, length = 70_000, 16
    ends = torch.arange(n + 1, device="cuda", dtype=torch.int32) * length
    three = [draw(n * length, 1, 64).requires_grad_() for _ in "qkv"]
    out = flash_attn_varlen_func(*three, ends, ends, length, length, causal=True)
    out.sum().backward()
    dense = [t.detach().view(n, length, 1, 64).requires_grad_() for t in three]
    attention(*dense, causal=True).sum().backward()
    for packed, one in zip(three, dense, strict=True):
        assert one.grad is not None
        assert (packed.grad.view_as(one.grad) - one.grad).abs().max() < 1e-2
    starts = torch.tensor([0, 0, 1, 1, 1, 2], device="cuda", dtype=torch.int32)
    keys = torch.arange(6, device="cuda", dtype=torch.int32) * length
    for d_head in (40, 64, 128):
        q, k = draw(2, 4, d_head), draw(5 * length, 2, d_head)
        for dropout_p in (0.0, 1e-7):  # by torch's FlashAttention 2
            out = flash_attn_varlen_func(q, k, k, starts, keys, 1, length, dropout_p)
            for row, i in ((0, 1), (1, 4)):
                own = k[None, i * length : (i + 1) * length]
                right = reference(q[None, [row]], own, own, Traits())
                # One of 256 weights is dropped even then.
                errors = (out[row] - right[0, 0]).abs().float()
                assert (errors.median() if dropout_p else errors.max()) < 1e-2


if __name__ == "__main__":
    main(globals())
