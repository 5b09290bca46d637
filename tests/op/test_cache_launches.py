"""Launches with a cache that are prepared once: what reaches C++ is what a call that is checked
would give it, whatever calls came before."""

from __future__ import annotations

import ctypes
import itertools
import random
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from fa_tune.build.native import abi
from fa_tune.build.native.core import CoreKernel
from fa_tune.core.errors import InvalidConfig
from fa_tune.families.plan import TensorRole
from fa_tune.op import cache_launches, flash_attn_with_kvcache, flash_kv_cache, kv_cache
from fa_tune.op.cache_launches import CacheLaunches, Prepared
from fa_tune.op.kv_cache import E4M3

DIFFERENT = ("o", "lse", "workspace")  # addresses of what a call allocates


class Recorder(CoreKernel):
    """A kernel that says what it was asked to launch."""

    operators: Any

    def __init__(self) -> None:
        self.launched: list[tuple[abi.Problem, abi.Tensors]] = []
        self.lengths: list[list[int]] = []

    def forget(self) -> None:
        """Calls that came before."""
        self.operators.cache_launches = CacheLaunches()

    def workspace_bytes(self, problem: Any, device: int = -1) -> int:
        return 64 * int(problem.batch)

    def launch(self, problem: Any, tensors: Any, stream: int = 0, device: int = -1) -> None:
        self.launched.append((problem, abi.Tensors.from_buffer_copy(tensors)))
        lengths = (ctypes.c_int32 * problem.batch).from_address(
            tensors.of[TensorRole.CACHE_SEQLENS].address
        )
        self.lengths.append(list(lengths))


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder, launches = Recorder(), CacheLaunches()
    operators = SimpleNamespace(
        kernel_with_cache=lambda workload, device: recorder, cache_launches=launches
    )
    monkeypatch.setattr(kv_cache.state, "operators", lambda: operators)
    monkeypatch.setattr(flash_kv_cache, "operators", lambda: operators)
    monkeypatch.setattr(flash_kv_cache, "why_not_ours", lambda *_: "")
    monkeypatch.setattr(cache_launches, "is_on_gpu", lambda _: True)
    stream = SimpleNamespace(cuda_stream=7)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: stream)
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, device=None, **more: empty(*a, **more))
    recorder.operators = operators
    return recorder


def told(structure: Any) -> Any:
    """What a structure holds, but for addresses of what a call allocates."""
    if not isinstance(structure, (abi.Problem, abi.Tensors, abi.Tensor)):
        return structure
    found = {
        name: told(getattr(structure, name)) for name, *_ in structure._fields_ if name != "of"
    }
    if isinstance(structure, abi.Tensors):
        found |= {role.name.lower(): told(structure.of[role]) for role in TensorRole}
    for name in DIFFERENT:
        place = found.get(name)
        if isinstance(place, dict):
            place["address"] = bool(place["address"])
        elif name in found and name != "o":
            found[name] = bool(place) if isinstance(structure, abi.Tensors) else place
    return found


def some_tensor(dice: random.Random, *shape: int, kind: torch.dtype) -> torch.Tensor:
    """Contiguous, or with heads in front of rows, or rows further apart."""
    if dice.random() < 0.2 and shape[1]:
        return torch.zeros(shape[0], shape[2], shape[1], shape[3]).to(kind).transpose(1, 2)
    if dice.random() < 0.2:
        return torch.zeros(*shape[:3], shape[3] + 16).to(kind)[..., : shape[3]]
    return torch.zeros(shape).to(kind)


def some_call(dice: random.Random) -> tuple[tuple[Any, ...], dict[str, Any]]:
    batch, queries = dice.choice((1, 2, 3)), dice.choice((1, 2))
    kv_heads, d_head = dice.choice((1, 2)), dice.choice((64, 128))
    half = dice.choice((torch.float16, torch.bfloat16))
    kind = E4M3 if dice.random() < 0.3 else half
    paged = dice.random() < 0.5
    places = (8, 16) if paged else (batch, 64)
    q = some_tensor(dice, batch, queries, 4, d_head, kind=half)
    if dice.random() < 0.1:
        q = torch.zeros(batch, queries, d_head, 4).to(half).transpose(2, 3)  # is copied
    caches = [some_tensor(dice, *places, kv_heads, d_head, kind=kind) for _ in "kv"]
    new = [some_tensor(dice, batch, 1, kv_heads, d_head, kind=kind) for _ in "kv"]
    lengths = torch.ones(batch, dtype=dice.choice((torch.int32, torch.int32, torch.int64)))
    options: dict[str, Any] = {
        "cache_seqlens": lengths,
        "causal": dice.random() < 0.5,
        "return_softmax_lse": dice.random() < 0.5,
        "softmax_scale": dice.choice((None, 0.25)),
        "window_size": dice.choice(((-1, -1), (20, -1), [20, 0])),
        "softcap": dice.choice((0.0, 30.0)),
    }
    if paged:
        table = torch.zeros(batch, 4, dtype=torch.int32)
        options["block_table"] = table if dice.random() < 0.7 else table.T.contiguous().T
    if kind == E4M3:
        scales = (None, torch.tensor(2.0), torch.ones(batch, kv_heads), torch.ones(kv_heads))
        options |= {"k_descale": dice.choice(scales), "v_descale": dice.choice(scales)}
    return (q, *caches, *(new if dice.random() < 0.5 else (None, None))), options


def like(tensor: torch.Tensor) -> torch.Tensor:
    """Another of its form."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)


def is_read_as_given(q: torch.Tensor, options: dict[str, Any]) -> bool:
    """Whether a call may make no copy; of scales that differ in strides it does."""
    table = options.get("block_table")
    as_given = table is None or table.is_contiguous()
    return as_given and q.stride(-1) == 1 and options["cache_seqlens"].dtype == torch.int32


def launched(kernel: Recorder, call: Callable[[], Any]) -> tuple[dict[str, Any], Any]:
    """What a call launches, and the forms of its results."""
    kernel.launched.clear()
    found = call()
    ((problem, tensors),) = kernel.launched
    results = found if isinstance(found, tuple) else (found,)
    forms = [(t.shape, t.stride(), t.dtype) for t in results]
    return {"problem": told(problem), **told(tensors)}, forms


def test_a_call_again_and_others_of_its_form_launch_what_a_checked_one_does(
    kernel: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice, prepared = random.Random(18), 0
    launch = Prepared.launch

    def counted(*given: Any) -> Any:
        nonlocal prepared
        prepared += 1
        return launch(*given)

    monkeypatch.setattr(Prepared, "launch", counted)
    for _ in range(300):
        given, options = some_call(dice)
        # Other tensors of the same form.
        moved = [t if t is None else like(t) for t in given]

        def call(tensors: Any, options: dict[str, Any] = options) -> Any:
            return flash_attn_with_kvcache(*tensors, **options)

        call(given)
        before = prepared
        again = [launched(kernel, partial(call, tensors)) for tensors in (given, moved)]
        fast = prepared - before
        assert fast in ((0, 2) if is_read_as_given(given[0], options) else (0,))
        for tensors, found in zip((given, moved), again, strict=True):
            kernel.forget()
            checked = launched(kernel, partial(call, tensors))
            if fast:
                for name in ("k_scale", "v_scale"):  # ones, or none: the same
                    if options.get(name.replace("_", "_de")) is None:
                        del checked[0][name], found[0][name]
                assert found == checked
    assert prepared > 100


def test_addresses_between_two_chunks_are_refused_whatever_came_before(kernel: Recorder) -> None:
    room = torch.zeros(4096, dtype=torch.float16)
    lengths = torch.ones(2, dtype=torch.int32)
    cache = torch.zeros(2, 64, 2, 64, dtype=torch.float16)
    good, bad = (room[i : i + 512].view(2, 1, 4, 64) for i in (0, 1))
    for _ in range(2):
        flash_attn_with_kvcache(good, cache, cache, cache_seqlens=lengths)
    with pytest.raises(InvalidConfig, match="at a multiple of 16 bytes"):
        flash_attn_with_kvcache(bad, cache, cache, cache_seqlens=lengths)
    cache = torch.zeros(2, 64, 2, 64, dtype=torch.float16)
    q, new = torch.zeros(2, 1, 4, 64).half(), torch.zeros(2, 1, 2, 64).half()
    lengths = torch.ones(2, dtype=torch.int32)
    wrong: list[dict[str, Any]] = [
        {"softmax_scale": float("nan")},
        {"softcap": -1.0},
        {"window_size": 3},
        {"window_size": (1, 2, 3)},
        {"k_descale": torch.tensor(1.0)},
        {"rotary_cos": cache},
        {"cache_leftpad": lengths},
        {"k": new},
        {"cache_seqlens": lengths[:1]},
        {"cache_seqlens": lengths.float()},
    ]
    for options, _ in itertools.product(wrong, range(2)):
        flash_attn_with_kvcache(q, cache, cache, cache_seqlens=lengths)
        with pytest.raises(InvalidConfig):
            flash_attn_with_kvcache(q, cache, cache, **{"cache_seqlens": lengths, **options})


def test_new_keys_behind_known_lengths_are_appended_by_the_kernel(kernel: Recorder) -> None:
    cache = torch.zeros(2, 64, 2, 64, dtype=torch.float16)
    q, new = torch.zeros(2, 1, 4, 64).half(), torch.zeros(2, 1, 2, 64).half()
    for length in (3, 4, 63):
        flash_attn_with_kvcache(q, cache, cache, new, new, cache_seqlens=length)
    assert kernel.lengths == [[3, 3], [4, 4], [63, 63]]
    with pytest.raises(InvalidConfig):
        flash_attn_with_kvcache(q, cache, cache, new, new, cache_seqlens=64)


def decoding() -> Callable[..., Any]:
    """A call of which all is given but options."""
    q, cache = torch.zeros(1, 2, 4, 64).half(), torch.zeros(1, 64, 2, 64).half()
    lengths = torch.ones(1, dtype=torch.int32)
    return partial(flash_attn_with_kvcache, q, cache, cache, cache_seqlens=lengths)


def test_a_window_in_a_list_is_that_in_a_tuple(
    kernel: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = decoding()
    call(window_size=[7, 0])
    monkeypatch.setattr(flash_kv_cache, "_checked", None)  # both are known
    call(window_size=[7, 0])
    call(window_size=(7, 0))
    assert len({bytes(problem) for problem, _ in kernel.launched}) == 1


@pytest.mark.parametrize("option", ["softmax_scale", "softcap"])
def test_a_number_in_a_tensor_is_read_anew(kernel: Recorder, option: str) -> None:
    call, number = decoding(), torch.tensor(0.5)
    call(**{option: number})
    call(**{option: number.fill_(0.25)})
    assert [getattr(problem, option) for problem, _ in kernel.launched] == [0.5, 0.25]


def test_new_keys_that_are_copied_are_copied_each_time(kernel: Recorder) -> None:
    """Their columns are not contiguous, so their strides are not those of what is launched."""
    call = decoding()
    apart = torch.zeros(1, 1, 64, 2).half().transpose(2, 3)
    for _ in range(2):
        call(k=apart, v=apart)
    for _, tensors in kernel.launched:
        assert tensors.of[TensorRole.NEW_K].address not in (0, apart.data_ptr())


def test_few_launches_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_launches, "MOST_KNOWN", 3)
    launches = CacheLaunches()
    prepared = cast(Prepared, SimpleNamespace(launch=lambda q, cache: cache))
    given = cast(Any, object())
    for number in range(7):
        launches.remember(number, prepared)
    assert [launches.launch(n, given, given) is given for n in range(7)] == [False] * 6 + [True]
    launches.remember([1], prepared)
    assert launches.launch([1], given, given) is None, "what cannot be hashed is checked each time"
