"""What attention to a cache refuses before the GPU would read beyond a tensor, and what it gives
to a launch."""

from __future__ import annotations

import ctypes
import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fa_tune.build.native import abi
from fa_tune.core.errors import InvalidConfig, NoUsableVariant
from fa_tune.core.workload import Workload
from fa_tune.families.plan import TensorRole
from fa_tune.op import flash_attn_with_kvcache, flash_kv_cache, kv_cache
from fa_tune.op.kv_cache import E4M3, Cache, attend
from fa_tune.op.traits import Traits


def half(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.float16)


def ints(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.int32)


Launched = list[tuple[abi.Problem, abi.Tensors]]


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Launched:
    """What is launched, by no kernel."""
    found: Launched = []
    operators = SimpleNamespace(kernel_with_cache=lambda workload, device: None)
    monkeypatch.setattr(kv_cache.state, "operators", lambda: operators)
    monkeypatch.setattr(kv_cache.python_op, "launch", lambda *given: found.append(given[1:3]))
    return found


@pytest.mark.parametrize(
    ("cache", "lengths", "table", "said"),
    [
        ((3, 32, 2, 64), (2,), None, r"lengths must be \[3\]"),
        ((3, 32, 2, 64), (3, 1), None, r"lengths must be \[3\]"),
        ((2, 32, 2, 64), (3,), None, "2 sequences, Q has 3"),
        ((3, 32, 2, 32), (3,), None, "d_head 64"),
        ((9, 16, 2, 64), (3,), (2, 4), r"block table must be \[3, pages\]"),
        ((9, 16, 2, 64), (3,), (3,), r"block table must be \[3, pages\]"),
    ],
)
def test_tensors_that_are_too_small_are_refused(
    cache: tuple[int, ...], lengths: tuple[int, ...], table: tuple[int, ...] | None, said: str
) -> None:
    block_table = None if table is None else ints(*table)
    with pytest.raises(InvalidConfig, match=said):
        attend(
            half(3, 1, 4, 64),
            Cache(half(*cache), half(*cache), ints(*lengths), block_table=block_table),
        )


def test_tensors_elsewhere_are_refused() -> None:
    cache = half(3, 32, 2, 64)
    with pytest.raises(InvalidConfig, match="must be on cpu, as Q"):
        attend(half(3, 1, 4, 64), Cache(cache, cache, ints(3).to("meta")))


@pytest.mark.parametrize("given", ["k", "v"])
def test_one_of_new_keys_and_values_alone_is_refused(given: str) -> None:
    cache = half(3, 32, 2, 64)
    with pytest.raises(InvalidConfig, match="both or neither"):
        flash_attn_with_kvcache(
            half(3, 1, 4, 64), cache, cache, cache_seqlens=ints(3), **{given: half(3, 1, 2, 64)}
        )


@pytest.mark.parametrize("window", [(-1, -1), (99, 0)])
@pytest.mark.parametrize("queries", [1, 2])
def test_one_query_is_the_problem_without_a_mask_that_is_tuned(
    monkeypatch: pytest.MonkeyPatch, queries: int, window: tuple[int, int]
) -> None:
    asked: list[Workload] = []

    def kernel(workload: Workload, device: int) -> None:
        asked.append(workload)

    operators = SimpleNamespace(kernel_with_cache=kernel)
    monkeypatch.setattr(kv_cache.state, "operators", lambda: operators)
    monkeypatch.setattr(kv_cache.python_op, "launch", lambda *_: None)
    for name in ("why_not_ours", "_why_no_kernel"):
        monkeypatch.setattr(flash_kv_cache, name, lambda *_: "")
    q, cache = half(3, queries, 4, 64), half(3, 256, 2, 64)
    for causal in (True, False):
        flash_attn_with_kvcache(
            q, cache, cache, cache_seqlens=ints(3), causal=causal, window_size=window
        )
    masked, full = asked
    assert (masked == full) == (queries == 1 or window[1] == 0)
    assert masked.causal == (queries > 1)


def test_rows_of_a_head_dimension_that_no_kernel_has_may_lie_as_they_like(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def kernel(workload: Workload, device: int) -> None:
        raise NoUsableVariant(f"no kernel has d_head {workload.d_head}")

    operators = SimpleNamespace(kernel_with_cache=kernel)
    monkeypatch.setattr(kv_cache.state, "operators", lambda: operators)
    cache = half(3, 32, 2, 59)
    with pytest.raises(NoUsableVariant, match="d_head 59"):
        attend(half(3, 1, 4, 59), Cache(cache, cache, ints(3)))


def integers(address: int, n: int) -> list[int]:
    return list((ctypes.c_int32 * n).from_address(address))


def floats(address: int, n: int) -> list[float]:
    return list((ctypes.c_float * n).from_address(address))


def test_a_launch_finds_lengths_pages_new_keys_and_scales(
    launched: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    def launch(kernel: Any, problem: abi.Problem, tensors: abi.Tensors, device: Any) -> None:
        """While it runs, copies must still be there."""
        of = tensors.of
        assert integers(of[TensorRole.CACHE_SEQLENS].address, 3) == [5, 0, 9]
        assert integers(of[TensorRole.PAGE_TABLE].address, 6) == [3, 0, 1, 2, 5, 4]
        assert floats(of[TensorRole.K_SCALE].address, 2) == [1.0, 2.0]
        assert floats(of[TensorRole.V_SCALE].address, 2) == [4.0, 4.0]
        launched.append((problem, tensors))

    monkeypatch.setattr(kv_cache.python_op, "launch", launch)
    pool, new = half(6, 16, 2, 64).to(E4M3), half(3, 2, 2, 64).to(E4M3)
    cache = Cache(
        pool,
        pool,
        torch.tensor([5, 0, 9]),
        new=(new, new),
        block_table=torch.tensor([[3, 9, 0], [1, 9, 2], [5, 9, 4]])[:, ::2],
        scales=(torch.tensor([1.0, 2.0]), torch.tensor(4.0)),
    )
    traits = Traits(window_left=7, softcap=20.0, sink=torch.zeros(4), scale=0.5)
    out, lse = attend(half(3, 2, 4, 64), cache, traits, return_lse=True)
    assert lse is not None
    assert (tuple(out.shape), tuple(lse.shape)) == ((3, 2, 4, 64), (3, 4, 2))
    ((problem, tensors),) = launched
    assert (problem.seq_len_q, problem.seq_len_kv, problem.kv_heads) == (2, 32, 2)
    assert (problem.window_left, problem.softcap, problem.softmax_scale) == (7, 20.0, 0.5)
    assert problem.mask == abi.Mask.FULL_DIAGONAL
    assert (problem.sink, problem.kv_e4m3) == (1, 1)
    assert (tensors.added, tensors.page_size) == (2, 16)
    assert tensors.of[TensorRole.PAGE_TABLE].batch_stride == 2
    given = tensors.of[TensorRole.NEW_K]
    assert given.address == new.data_ptr()
    strides = [given.batch_stride, given.seq_stride, given.head_stride]
    assert strides == [*new.stride()[:3]]


@pytest.mark.parametrize("appends", [False, True])
def test_a_backward_pass_knows_whether_the_cache_was_written(
    appends: bool, launched: Launched
) -> None:
    cache, new = half(3, 32, 2, 64), (half(3, 1, 2, 64), half(3, 1, 2, 64))
    weight = half(64).requires_grad_()
    loss = (cache * weight).sum()
    attend(half(3, 1, 4, 64), Cache(cache, cache, ints(3), new=new if appends else None))
    if appends:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
    else:
        loss.backward()


@pytest.mark.parametrize(("batch", "kv_heads"), [(1, 1), (3, 1), (1, 2), (3, 2)])
def test_scales_of_any_shape_have_strides_in_common(
    batch: int, kv_heads: int, launched: Launched
) -> None:
    cache = half(batch, 32, kv_heads, 64).to(E4M3)
    of_each = torch.arange(1.0, batch * kv_heads + 1).view(batch, kv_heads)
    shapes = (of_each, of_each[:, :1], of_each[:1], torch.tensor(2.0), of_each.T.contiguous().T)
    for scales in itertools.product(shapes, repeat=2):
        attend(half(batch, 1, 4, 64), Cache(cache, cache, ints(batch), scales=scales))
        of = launched.pop()[1].of
        one, other = of[TensorRole.K_SCALE], of[TensorRole.V_SCALE]
        assert batch == 1 or one.batch_stride == other.batch_stride
        assert kv_heads == 1 or one.head_stride == other.head_stride
