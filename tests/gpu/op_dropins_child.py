"""The drop-ins on a GPU: every check that is named, in one process; see `op_checks.main`."""

import itertools
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from fa_tune.core.errors import InvalidConfig
from fa_tune.op import (
    attention,
    enable_sdpa,
    flash_attn_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
    register_transformers,
)
from fa_tune.op.traits import Traits
from tests.gpu.op_checks import captured, draw, grads, int32, main, reference
from tests.gpu.oracle import same_bits


def kernels_of(call: Callable[[], Any]) -> str:
    """The names of the kernels that a call launches."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        call()
        torch.cuda.synchronize()
    return " ".join(event.key for event in found.key_averages())


def sdpa_kernels() -> None:
    """Before, during and after; in the default order, which prefers cuDNN on some GPUs."""
    sdpa = torch.nn.functional.scaled_dot_product_attention
    q = draw(2, 4, 256, 128)
    attention(*(t.transpose(1, 2) for t in (q, q, q)), return_lse=True)

    def call() -> torch.Tensor:
        found: torch.Tensor = sdpa(q, q, q, is_causal=True)
        return found

    call()
    before, bits_before = kernels_of(call), call()
    order = torch._C._get_sdp_priority_order()
    with enable_sdpa():
        call()
        during, ours = kernels_of(call), call()
    after = kernels_of(call)
    assert "fa_tune" in during, during
    assert "fa_tune" not in before + after, (before, after)
    assert torch._C._get_sdp_priority_order() == order
    assert same_bits([call()], [bits_before])
    assert (ours - bits_before).abs().max() < 4e-3


def sdpa_values() -> None:
    """Ours beside torch's, with gradients and fewer kv heads; torch's own bits for the rest."""
    sdpa = torch.nn.functional.scaled_dot_product_attention
    shapes = [((2, 4, 200, 64), (2, 4, 200, 64), True), ((2, 4, 100, 128), (2, 2, 300, 128), False)]
    for q_shape, k_shape, causal in shapes:
        q, k, v = draw(*q_shape), draw(*k_shape), draw(*k_shape)
        seed = draw(*q_shape)

        def run(*t: Any, causal: bool = causal) -> Any:
            return sdpa(*t, is_causal=causal, enable_gqa=True)

        right = run(*(t.double() for t in (q, k, v)))
        exact = grads(run, [t.double() for t in (q, k, v)], seed)
        plain = grads(run, [q, k, v], seed)
        with enable_sdpa():
            assert (run(q, k, v) - right).abs().max() < 4e-3
            found = grads(run, [q, k, v], seed)
        for a, b, c in zip(found, plain, exact, strict=True):
            assert (a - c).abs().max() <= 2 * (b - c).abs().max() + 1e-3 * c.abs().max()
    compiled = torch.compile(lambda t: sdpa(t, t, t, is_causal=True) * 2, fullgraph=True)
    q = draw(2, 4, 128, 64)
    with enable_sdpa():
        assert same_bits([compiled(q)], [sdpa(q, q, q, is_causal=True) * 2])
    others: list[tuple[torch.Tensor, dict[str, Any]]] = [
        (draw(2, 4, 128, 72), {}),  # a head dimension that is not ours
        (draw(2, 4, 128, 64, dtype=torch.float32), {}),
        (draw(2, 4, 128, 64), {"attn_mask": torch.ones(128, 128, device="cuda").tril().bool()}),
    ]
    for t, options in others:
        expected = sdpa(t, t, t, **options)
        with enable_sdpa(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert same_bits([sdpa(t, t, t, **options)], [expected]), (t.shape, options)


def packed_in_longer_buffers() -> None:
    """One sequence or several in buffers of which they fill a part, the rest NaN, whatever the
    longest length is said to be; in a graph that is replayed with other bounds."""
    rows, kinds = 500, ((64, torch.float16), (128, torch.bfloat16))
    for d_head, dtype in kinds:
        q, k, v = (draw(rows, heads, d_head, dtype=dtype) for heads in (8, 2, 2))
        for several in ([(0, 200), (100, 500)], [(0, 1, 130), (70, 70, 400)]):
            bounds = torch.tensor(several[0], dtype=torch.int32, device="cuda")
            given = (q, k, v, bounds, bounds, rows, rows)
            flash_attn_varlen_func(*given, causal=True)
            graph, replayed = captured(partial(flash_attn_varlen_func, *given, causal=True))
            for ends in several:
                bounds.copy_(torch.tensor(ends, dtype=torch.int32))
                inside = slice(ends[0], ends[-1])
                for tensor in (k, v):
                    kept = tensor[inside].nan_to_num(0.5)
                    tensor.fill_(torch.nan)
                    tensor[inside] = kept
                out = flash_attn_varlen_func(*given, causal=True)
                graph.replay()
                for begin, end in itertools.pairwise(ends):
                    own = slice(begin, end)
                    alone = flash_attn_func(q[None, own], k[None, own], v[None, own], causal=True)
                    for found in (out, replayed):
                        assert begin == end or (found[own] - alone[0]).abs().max() < 4e-2, ends


def no_heads_are_refused() -> None:
    """Torch's FlashAttention 2 divides by their number."""
    q = draw(2, 96, 4, 64)
    bounds = int32(0, 96, 192)
    dense = (q, q[:, :, :0], q[:, :, :0])
    packed = [t.flatten(0, 1) for t in dense]
    for call in (
        lambda: flash_attn_func(*dense),
        lambda: flash_attn_varlen_func(*packed, bounds, bounds, 96, 96),
    ):
        try:
            call()
        except InvalidConfig:
            continue
        raise AssertionError("K without heads was accepted")


def a_cache_in_a_graph() -> None:
    """A graph appends a token to sequences that grow from replay to replay."""
    batch, kv_heads, d_head, page = 5, 2, 128, 16
    pool_k, pool_v = (
        torch.full((64, page, kv_heads, d_head), torch.nan).half().cuda() for _ in "kv"
    )
    table = torch.randperm(64, device="cuda")[:50].view(batch, 10).int()
    lengths = torch.zeros(batch, dtype=torch.int32, device="cuda")
    q, new_k, new_v = draw(batch, 1, 8, d_head), *(draw(batch, 1, kv_heads, d_head) for _ in "kv")

    def step() -> torch.Tensor:
        found: torch.Tensor = flash_attn_with_kvcache(
            q, pool_k, pool_v, new_k, new_v, cache_seqlens=lengths, block_table=table, causal=True
        )
        lengths.add_(1)
        return found

    step()
    lengths.zero_()
    torch.cuda.synchronize()
    graph, out = captured(step)
    keys, values = [], []
    for _ in range(100):
        q.copy_(draw(*q.shape))
        new_k.copy_(draw(*new_k.shape))
        new_v.copy_(draw(*new_v.shape))
        keys.append(new_k.clone())
        values.append(new_v.clone())
        graph.replay()
        known = (q, torch.cat(keys, 1), torch.cat(values, 1))
        expected = reference(*(t.double() for t in known), Traits())
        assert (out - expected).abs().max() < 4e-3, len(keys)


def compiled_caches() -> None:
    """A compiled step appends to caches in place while lengths grow: the bits of one that is not
    compiled, and no other graph."""

    def step(*given: torch.Tensor) -> torch.Tensor:
        q, k, v, new_k, new_v, lengths = given
        found: torch.Tensor = flash_attn_with_kvcache(
            q, k, v, new_k, new_v, cache_seqlens=lengths, causal=True
        )
        return found

    for mode in (None, "reduce-overhead"):
        torch._dynamo.reset()
        compiled = torch.compile(step, fullgraph=True, mode=mode)
        mine = [draw(3, 256, 2, 128) for _ in "kv"]
        theirs = [t.clone() for t in mine]
        lengths = int32(0, 3, 70)
        for number in range(20):
            q, *new = draw(3, 1, 8, 128), *(draw(3, 1, 2, 128) for _ in "kv")
            with torch._dynamo.config.patch(error_on_recompile=number > 0):
                found = compiled(q, *theirs, *new, lengths).clone()
            assert same_bits([found, *theirs], [step(q, *mine, *new, lengths), *mine]), mode
            lengths += 1


@torch.no_grad()
def a_static_cache_in_a_graph() -> str:
    """A decode step of a model, captured, beside the whole sequence at once by eager attention."""
    try:
        from transformers import StaticCache

        from tests.op import tiny_models
    except ImportError as error:
        return str(error)
    register_transformers()
    model = tiny_models.make("llama").to("cuda", torch.float16)
    tokens = tiny_models.prompts("cuda", padded=False)["input_ids"]
    model.set_attn_implementation("eager")
    right = model(tokens).logits
    model.set_attn_implementation("fa_tune")
    cache = StaticCache(config=model.config, max_cache_len=16)
    model(tokens[:, :3], past_key_values=cache, use_cache=True)
    token, position = tokens[:, 3:4].clone(), torch.tensor([[3]], device="cuda")

    def step() -> torch.Tensor:
        found: torch.Tensor = model(
            token, position_ids=position, past_key_values=cache, use_cache=True
        ).logits
        return found

    step()
    torch.cuda.synchronize()
    graph, logits = captured(step)
    for number in range(3, tokens.shape[1]):
        token.copy_(tokens[:, number : number + 1])
        position.fill_(number)
        for layer in cache.layers:
            layer.cumulative_length.fill_(number)
        graph.replay()
        difference = (logits[:, 0] - right[:, number]).abs().max()
        assert difference <= 2e-2 * right.abs().max(), (number, difference)
    return "right"


def launches_that_overlap() -> None:
    """Each reads what the one in front of it writes, and begins before that is done: in a graph the
    same bits as one at a time."""
    shapes = ((1, 64, 8, 1, 1024), (4, 64, 8, 4, 1024), (16, 64, 8, 1, 1024), (1, 32, 32, 1, 3000))
    for batch, heads, kv_heads, queries, keys in shapes:
        q = draw(batch, queries, heads, 128)
        caches = [[draw(batch, keys, kv_heads, 128) for _ in "kv"] for _ in range(6)]

        expected = q
        for k, v in caches:
            expected = attention(expected, k, v)
            torch.cuda.synchronize()
        with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
            out = q
            for k, v in caches:
                out = attention(out, k, v)
        for _ in range(30):
            graph.replay()
            assert same_bits([out], [expected]), (batch, heads, kv_heads, queries, keys)


def transformers_models() -> str:
    """The same tokens as eager attention: dynamic and static cache, padding, chunks, window."""
    try:
        from tests.op import tiny_models
    except ImportError as error:
        return str(error)
    register_transformers()
    for kind in ("llama", "mistral", "qwen", "gemma", "gpt-oss"):
        model = tiny_models.make(kind).to("cuda", torch.float16)
        for padded in (False, True):
            for static in (False, True):
                tokens = []
                for name in ("eager", "fa_tune"):
                    model.set_attn_implementation(name)
                    tokens.append(tiny_models.generated(model, padded=padded, static=static))
                assert tokens[0] == tokens[1], (kind, padded, static)
        for static in (False, True):
            logits = []
            for name in ("eager", "fa_tune"):
                model.set_attn_implementation(name)
                logits.append(tiny_models.chunked(model, static=static))
            scale = logits[0].abs().max()
            assert (logits[0] - logits[1]).abs().max() <= 2e-2 * scale, (kind, static)
    return "right"


if __name__ == "__main__":
    main(globals())
