"""Calls that torch compiles as one graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from fa_tune.op import flash_attn_with_kvcache, flash_kv_cache
from fa_tune.op.kv_cache import E4M3
from fa_tune.op.operands import Lengths
from fa_tune.op.packed import packed_attention
from fa_tune.op.traits import Traits
from tests.op import twins
from tests.op.twins import draw

LENGTHS = torch.tensor([5, 3], dtype=torch.int32)
TABLE = torch.tensor([[3, 1], [0, 2]], dtype=torch.int32)


@pytest.fixture(autouse=True)
def on_the_cpu() -> Iterator[None]:
    torch.compiler.reset()
    with twins.registered():
        yield


def test_a_packed_batch_with_the_same_starts_of_queries_and_keys_has_gradients() -> None:
    rows, starts = draw(9, 2, 16), torch.tensor([0, 4, 9], dtype=torch.int32)

    def run(rows: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        lengths = Lengths(starts, starts, 5, 5)
        return packed_attention(rows, rows, rows, lengths, Traits(causal=True))[0]

    found = []
    for call in (run, torch.compile(run, fullgraph=True, backend="aot_eager")):
        leaf = rows.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(call(leaf, starts).sum(), leaf)
        found.append(gradient)
    assert torch.allclose(*found, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("appends", [False, True])
@pytest.mark.parametrize(
    "given",
    [
        {"cache_seqlens": 5},
        {"cache_seqlens": LENGTHS},
        {"cache_seqlens": LENGTHS, "window_size": (2, -1), "softcap": 3.0},
        {"cache_seqlens": LENGTHS, "alibi_slopes": torch.rand(4), "softmax_scale": 0.3},
        {"cache_seqlens": 5, "block_table": TABLE},
        {"cache_seqlens": LENGTHS, "block_table": TABLE},
        {"cache_seqlens": LENGTHS, "cache_batch_idx": torch.tensor([3, 0])},
        {"cache_seqlens": 5, "cache_batch_idx": torch.tensor([3, 0])},
        {"cache_seqlens": 5, "k_descale": torch.tensor(2.0)},
    ],
)
def test_a_cache_is_one_graph(given: dict[str, Any], appends: bool) -> None:
    n_caches = 4 if "block_table" in given or "cache_batch_idx" in given else 2
    kind = E4M3 if "k_descale" in given else torch.float32
    q, new = draw(2, 2, 4, 32), [draw(2, 2, 2, 32).to(kind) for _ in "kv"]
    caches = [draw(n_caches, 16, 2, 32).to(kind) for _ in "kv"]

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *new: torch.Tensor) -> Any:
        return flash_attn_with_kvcache(q, k, v, *new, causal=True, return_softmax_lse=True, **given)

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    found = []
    for call in (run, compiled):
        k, v = (t.clone() for t in caches)
        found.append((*call(q, k, v, *(new if appends else ())), k, v))
    for mine, other in zip(*found, strict=True):
        assert torch.allclose(mine.float(), other.float(), atol=1e-6)
    assert torch.equal(found[1][2].float(), caches[0].float()) != appends


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("lse", [False, True])
def test_schemas_and_fakes_of_caches_are_true(lse: bool) -> None:
    q, k, v = draw(2, 3, 4, 32), draw(4, 16, 2, 32), draw(4, 16, 2, 32)
    new = (draw(2, 2, 2, 32), draw(2, 2, 2, 32))
    problem = (LENGTHS, TABLE, None, None, lse, True, None, -1, -1, 0.0, None)
    ops = torch.ops.fa_tune
    torch.library.opcheck(ops.cache_fwd.default, (q, k, v, *problem))
    torch.library.opcheck(ops.cache_append_fwd.default, (q, k, v, *new, *problem))


@pytest.mark.filterwarnings("ignore")
def test_a_growing_cache_is_not_compiled_for_each_length() -> None:
    graphs = 0

    def counting(graph: Any, inputs: Any) -> Any:
        nonlocal graphs
        graphs += 1
        return graph

    compiled = torch.compile(flash_attn_with_kvcache, fullgraph=True, backend=counting)
    q, cache, new = draw(2, 1, 4, 32), draw(2, 64, 2, 32), draw(2, 1, 2, 32)
    for length in range(3, 40):
        compiled(q, cache, cache.clone(), new, new, cache_seqlens=length)
        compiled(q, cache, cache.clone(), new, new, cache_seqlens=torch.full((2,), length))
    assert graphs <= 4


def test_tensors_without_numbers_launch_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel would read and write at address 0."""
    launched = []
    monkeypatch.setattr(flash_kv_cache, "why_not_ours", lambda *_: "")
    monkeypatch.setattr(flash_kv_cache, "attend", lambda *_, **__: launched.append(1))
    with FakeTensorMode():
        q, cache, new = draw(2, 1, 4, 32), draw(2, 16, 2, 32), draw(2, 1, 2, 32)
        lengths = torch.zeros(2, dtype=torch.int32)
        out, lse = flash_attn_with_kvcache(
            q, cache, cache, new, new, cache_seqlens=lengths, return_softmax_lse=True
        )
    assert not launched
    assert (tuple(out.shape), tuple(lse.shape)) == ((2, 1, 4, 32), (2, 4, 1))


@pytest.mark.filterwarnings("ignore")
def test_a_traced_graph_has_the_cache_in_it() -> None:
    q, k, v, new = draw(2, 1, 4, 32), draw(2, 16, 2, 32), draw(2, 16, 2, 32), draw(2, 1, 2, 32)

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = flash_attn_with_kvcache(q, k, v, new, new, cache_seqlens=LENGTHS)
        return found

    graph = make_fx(run)(q, k.clone(), v.clone(), new)
    names = [str(node.target) for node in graph.graph.nodes]
    assert "fa_tune.cache_append_fwd.default" in names
    assert torch.equal(graph(q, k.clone(), v.clone(), new), run(q, k, v, new))
