"""Checks of the operators in C++ on CPU tensors, with a stub in place of the driver."""

from __future__ import annotations

import os
import random
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fa_tune import families
from fa_tune.build.compile import BuildRequest, BuildResult
from fa_tune.build.native import abi
from fa_tune.build.native.call import problem_of, tensors_of
from fa_tune.build.native.core import CoreKernel, KernelImage
from fa_tune.core.arch import limits
from fa_tune.core.errors import DriverError, InvalidConfig
from fa_tune.core.model import Artifact, Outcome, Resources
from fa_tune.core.workload import DType, Workload
from fa_tune.op import api, chooser, sdpa
from fa_tune.op.chooser import Choice, Chooser
from fa_tune.op.fallback_warning import FallbackWarning
from fa_tune.op.operands import Lengths
from fa_tune.op.packed import packed_attention
from fa_tune.op.plans import Plans
from fa_tune.op.state import Operators
from fa_tune.op.traits import Traits
from fa_tune.store.registry.buckets import representative
from tests.csrc.stub import Launched, Stub, image
from tests.described import described

SYMBOL = "kernel"
ROOM = 0x7EEDBEEF0  # an address of a workspace
TUNED = Workload(2, 4, 4, 1000, 1000, 128, DType.FP16)
compiled: list[BuildRequest] = []


def build(requests: list[BuildRequest], *_: object, **__: object) -> list[BuildResult]:
    compiled.extend(requests)
    if threading.active_count() > 1:
        time.sleep(0.01)  # other threads get their turn
    uses = Resources(1, 0, 0, 0, 0, 0, 1, 1)
    return [
        BuildResult(
            r, Outcome.OK, Artifact(r.variant, r.traits, r.arch, "", SYMBOL, uses), "", False
        )
        for r in requests
    ]


class OneTuned(Chooser):
    """Of an H200, whose registry has one workload."""

    tuned = frozenset({TUNED})


def load_with(operators: Operators) -> Callable[[Artifact], CoreKernel]:
    def load(artifact: Artifact) -> CoreKernel:
        family = families.get(artifact.variant.family)
        config = families.config_of(artifact.variant)
        plain = Workload(1, 1, 1, 1, 1, config.d_head, config.dtype, op=family.operation)
        outputs = {name: abi.Tensor(1 << 20) for name in ("do", "dq", "dk", "dv")}
        kernels = [
            (f"{SYMBOL}_{i}", [*(128 for _ in step.maps), len(step.params)])
            for i, step in enumerate(described(config, plain, outputs))
        ]
        call = family.plan(config, artifact.traits, artifact.arch)
        assert operators.native is not None
        symbols = tuple(name for name, _ in kernels)
        made = KernelImage(artifact.variant.key, call, symbols, image(kernels))
        return operators.native.core.kernel(made)

    return load


def started(folder: str) -> Operators:
    chooser.build = build  # type: ignore[assignment]
    operators = Operators("CPU", Path(folder))
    assert operators.native is not None, operators.why_python
    made = OneTuned(
        "NVIDIA H200", limits((9, 0)), Path(folder) / "none.json", cache_dir=Path(folder)
    )
    operators.plans = Plans(load_with(operators), lambda device: made)
    return operators


def draw(batch: int, length: int, heads: int, d_head: int = 128) -> torch.Tensor:
    return torch.zeros(batch, length, heads, d_head, dtype=torch.float16)


def drawn_traits(dice: random.Random, heads: int, batch: int, *, packed: bool = False) -> Traits:
    """Of any kind that such a batch may have."""

    def maybe(value: Any) -> Any:
        return dice.choice((None, value))

    window: tuple[int | None, int | None] = (None, None)
    slopes = None
    if dice.random() < 0.5:
        window = (maybe(dice.choice((0, 100, 2000))), maybe(dice.choice((0, 70, 2000))))
        slopes = maybe(torch.zeros(dice.choice(((heads,), (batch, heads)))))
    causal = dice.random() < 0.6
    aligned = causal or window != (None, None) or slopes is not None
    sink, softcap = maybe(torch.zeros(heads)), maybe(20.0)
    bottom_right = aligned and not packed and dice.random() < 0.5
    scores = (*window, sink, softcap, slopes, dice.random() < 0.3)
    return Traits(causal, bottom_right, maybe(0.5), *scores)


def given_ones(**tensors: torch.Tensor | None) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def same_launch(
    operators: Operators,
    workload: Workload,
    tensors: abi.Tensors,
    found: Launched,
    *,
    same_params: bool = True,
) -> bool:
    """The core launches this with the same tensors; whether it needed room, in return."""
    kernel = operators.plans.kernel(workload, -1)
    assert isinstance(kernel, CoreKernel)
    shares = kernel.workspace_bytes(workload) > 0
    if shares:
        tensors.workspace = ROOM
    kernel.launch(problem_of(workload), tensors, 0, -1)
    (expected,) = Stub().launched()
    params = expected.params
    if shares:  # torch's memory, wherever it is
        at = params.index(ROOM.to_bytes(8, "little"))
        params = params[:at] + found.params[at : at + 8] + params[at + 8 :]
    assert replace(found, params=b"") == replace(expected, params=b""), workload
    assert not same_params or found.params == params, workload
    return shares


def views(operators: Operators) -> None:
    """Grid and parameters are those of the core with the same tensors and traits."""
    stub, dice, shared = Stub(), random.Random(1), 0
    for number in range(300):
        kv_heads = dice.choice((1, 2, 3))
        heads, batch, d_head = kv_heads * dice.choice((1, 2, 5)), dice.choice((1, 3)), 128
        n_q, n_kv = (dice.choice((1, 64, 384, 1000, 1031)) for _ in range(2))
        q = draw(batch, n_q, heads).transpose(1, 2).contiguous().transpose(1, 2)
        k, v = draw(batch, n_kv, 2 * kv_heads).chunk(2, 2)
        traits = drawn_traits(dice, heads, batch) if number % 2 else Traits(scale=0.5)
        out = draw(batch, n_q, heads) if dice.random() < 0.5 else torch.zeros_like(q)
        lse = torch.zeros(batch, heads, n_q) if dice.random() < 0.5 else None
        stub.launched()
        api.attention(q, k, v, out=out, lse=lse, **traits.of_attention)
        (found,) = stub.launched()
        workload = Workload(
            *(batch, heads, kv_heads, n_q, n_kv, d_head, DType.FP16),
            lse=lse is not None,
            **traits.of_workload,
        )
        more = given_ones(lse=lse, sink=traits.sink, alibi_slopes=traits.alibi_slopes)
        args = tensors_of(more)
        for role, t in enumerate((q, k, v, out)):
            args.of[role] = abi.Tensor(t.data_ptr(), *t.stride()[:3])
        # A mask or a side that hides nothing may be stated to kernels that do not look at it.
        settled = (workload.causal, workload.window_left, workload.window_right) == (
            traits.causal,
            traits.window_left,
            traits.window_right,
        )
        shared += same_launch(operators, workload, args, found, same_params=settled)
    assert 10 < shared < 290


def packed(operators: Operators) -> None:
    """The same of packed batches, into new tensors and into those that are given."""
    stub, dice, ops = Stub(), random.Random(3), torch.ops.fa_tune
    for number in range(100):
        kv_heads, batch = dice.choice((1, 2)), dice.choice((1, 3, 8))
        heads = kv_heads * dice.choice((1, 4))
        lengths = [(dice.randint(0, 300), dice.randint(1, 900)) for _ in range(batch)]
        lengths[0] = (300, 900)
        q = draw(1, sum(a for a, _ in lengths), heads)[0]
        k, v = draw(1, sum(b for _, b in lengths), 2 * kv_heads)[0].chunk(2, 1)
        cum_q, cum_kv = (torch.zeros(batch + 1, dtype=torch.int32) for _ in range(2))
        traits = drawn_traits(dice, heads, batch, packed=True)
        given = (q, k, v, cum_q, cum_kv, 300, 900)
        stub.launched()
        out, lse = torch.empty_like(q), None
        if number % 3 == 0:
            torch.empty_like(q).fill_(torch.nan)  # whose memory may come next
            out = ops.packed_fwd(*given, *traits.scored)
            assert (out == 0).all(), "what no kernel writes"
        elif number % 3 == 1:
            torch.empty_like(q).fill_(torch.nan)
            out, lse = ops.packed_fwd_lse(*given, *traits.scored)
            assert lse.shape == (heads, len(q))
            assert (out == 0).all()
            assert (lse == 0).all()
        else:
            lse = torch.zeros(heads, len(q))
            ops.packed_fwd_out(*given, out, lse, *traits.scored)
        assert (out.shape, out.is_contiguous()) == (q.shape, True)
        (found,) = stub.launched()
        workload = Workload(
            *(batch, heads, kv_heads, 300, 900, 128, DType.FP16),
            lse=lse is not None,
            packed=True,
            total_q=len(q),
            total_kv=len(k),
            **traits.of_workload,
        )
        more = given_ones(lse=lse, sink=traits.sink, alibi_slopes=traits.alibi_slopes)
        more |= {"cu_seqlens_q": cum_q, "cu_seqlens_kv": cum_kv}
        more |= {name: t[None] for name, t in zip("qkvo", (q, k, v, out), strict=True)}
        # A side that hides nothing may be stated to kernels that do not look at it.
        window = (workload.window_left, workload.window_right)
        settled = window == (traits.window_left, traits.window_right)
        same_launch(operators, workload, tensors_of(more), found, same_params=settled)


def results(operators: Operators) -> None:
    """Fresh tensors: contiguous, of the right shapes, and where the kernel writes."""
    q, k = draw(2, 100, 6).transpose(1, 2).contiguous().transpose(1, 2), draw(2, 50, 3)
    out, lse = api.attention(q, k, k, return_lse=True)
    assert out.shape == q.shape
    assert out.is_contiguous()
    assert out.dtype == q.dtype
    assert (lse.shape, lse.dtype) == ((2, 6, 100), torch.float32)
    plain = api.attention(q, k, k)
    assert (plain.shape, plain.is_contiguous()) == (q.shape, True)
    # Tensors that no kernel reads are copied, with a warning once.
    q, k = draw(1, 64, 4), draw(1, 64, 2)
    moved = torch.zeros(q.numel() + 8, dtype=q.dtype)[4 : 4 + q.numel()].view(q.shape)
    rows = torch.zeros(1, 64, 4, 132, dtype=q.dtype)[..., :128]
    turned = q.transpose(1, 3).contiguous().transpose(1, 3)
    starts = torch.tensor([0, 64], dtype=torch.int32)
    stub = Stub()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for tensor in (moved, rows, turned):
            stub.launched()
            api.attention(tensor, k, k)
            packed_attention(tensor[0], k[0], k[0], Lengths(starts, starts, 64, 64), Traits())
            for found in stub.launched():
                assert tensor.data_ptr().to_bytes(8, "little") not in found.params
                assert k.data_ptr().to_bytes(8, "little") in found.params
    assert [one.category for one in told] == [FallbackWarning]


def refused(operators: Operators) -> None:
    """By the same exceptions as Python's, each in one line; and a call after each."""
    q, k = draw(1, 64, 4), draw(1, 64, 2)
    moved = torch.zeros(q.numel() + 8, dtype=q.dtype)[4 : 4 + q.numel()].view(q.shape)
    turned = q.transpose(1, 3).contiguous().transpose(1, 3)
    ends = torch.tensor([0, 64], dtype=torch.int32)
    many_queries, many_keys = draw(300, 8, 1), draw(1, 1, 1).expand(300, 2**30, 1, -1)

    def packed_fwd(*given: Any) -> Any:
        return packed_attention(*given[:3], Lengths(*given[3:]), Traits())

    def in_a_thread(function: Callable[..., Any], *given: Any) -> Any:
        """Whose first failure this is: C++ keeps the text of each."""
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(function, *given).result()

    calls: list[tuple[str, Callable[[], Any]]] = [
        ("dimensions", lambda: api.attention(q[0], k, k)),
        ("K and V differ", lambda: api.attention(q, k, k[:, :8])),
        ("batch or d_head", lambda: api.attention(q, k[..., :64], k[..., :64])),
        ("do not divide", lambda: api.attention(q[:, :, :3], k, k)),
        ("fp16", lambda: api.attention(q.float(), k.float(), k.float())),
        ("fp16", lambda: api.attention(q, k.bfloat16(), k)),
        ("bottom_right", lambda: api.attention(q, k, k, bottom_right=True)),
        ("softmax_scale", lambda: api.attention(q, k, k, softmax_scale=0.0)),
        ("softmax_scale", lambda: api.attention(q, k, k, softmax_scale=float("nan"))),
        ("at least 1", lambda: api.attention(q[:, :0], k, k)),
        ("contiguous", lambda: api.attention(q, k, k, out=turned)),
        ("16", lambda: api.attention(q, k, k, out=moved)),
        ("out must be", lambda: api.attention(q, k, k, out=k)),
        ("out must have", lambda: api.attention(q, k, k, out=draw(1, 1, 4).expand(q.shape))),
        ("lse must be", lambda: api.attention(q, k, k, lse=torch.zeros(3))),
        ("window_left", lambda: api.attention(q, k, k, window=(-1, None))),
        ("softcap", lambda: api.attention(q, k, k, softcap=0.0)),
        ("sink must be", lambda: api.attention(q, k, k, sink=torch.zeros(3))),
        ("alibi_slopes must", lambda: api.attention(q, k, k, alibi_slopes=torch.zeros(2, 4))),
        ("cu_seqlens_k must", lambda: packed_fwd(q[0], k[0], k[0], ends, ends[:1], 64, 64)),
        ("cu_seqlens_q must", lambda: packed_fwd(q[0], k[0], k[0], ends.long(), ends, 64, 64)),
        ("seq_len_q", lambda: packed_fwd(q[0], k[0], k[0], ends, ends, 0, 64)),
        ("[rows, heads, d_head]", lambda: packed_fwd(q, k, k, ends, ends, 64, 64)),
        ("too many blocks", lambda: in_a_thread(api.attention, many_queries, many_keys, many_keys)),
        ("no gradient", lambda: api.attention(q.requires_grad_(), k, k, out=draw(1, 64, 4))),
    ]
    for said, call in calls:
        with pytest.raises(InvalidConfig) as caught:
            call()
        assert said in str(caught.value), (said, str(caught.value))
        assert "\n" not in str(caught.value)
        with torch.no_grad():
            api.attention(q, k, k)
    odd = draw(1, 64, 4, 24)
    with pytest.raises(RuntimeError, match="NoUsableVariant: no kernel runs"):
        torch.ops.fa_tune.fwd(odd, odd, odd)
    assert api.attention(odd, odd, odd).shape == odd.shape  # with columns of zeros


def buckets(operators: Operators) -> None:
    """Growing lengths cost a choice per doubling; a tuned workload has one of its own."""
    assert operators.native is not None
    q = draw(2, 1, 8)
    for n_kv in range(1, 2049):
        k = draw(2, n_kv, 8)
        api.attention(q, k, k)
    choices = operators.native.choices()
    assert 11 <= choices <= 13 + 1, choices  # and the tuned one, known beforehand
    assert len(compiled) <= 2 * choices
    before = len(compiled)
    tuned, near = (draw(2, n, 4) for n in (1000, 1008))
    api.attention(near, near, near)
    assert len(compiled) == before + 1
    api.attention(tuned, tuned, tuned)
    assert len(compiled) == before + 2, "the bucket of its neighbours serves it"
    api.attention(tuned, tuned, tuned)
    assert len(compiled) == before + 2
    # One bucket, whole tiles of two sizes: each is chosen once.
    wide, usual = (draw(7, n, 16, 64) for n in (1024, 1152))
    for q in (wide, usual, wide, usual):
        api.attention(q, q, q)
    assert len(compiled) == before + 4
    # And short lengths: each has its own default, whoever comes first.
    for n in (257, 197, 257, 197):
        q = draw(7, n, 16, 64)
        api.attention(q, q, q)
    assert len(compiled) == before + 6
    for n, request in zip((257, 197), compiled[-2:], strict=True):
        workload = Workload(8, 16, 16, n, n, 64, DType.FP16)
        (default, *_) = families.defaults_for(workload, limits((9, 0)))
        assert request.variant == families.variant(default)


def partition(operators: Operators) -> None:
    """A bucket of C++ is part of one of `fa_tune.store.registry.buckets.representative`."""
    assert operators.native is not None
    dice, stands = random.Random(2), dict[object, Workload]()
    for _ in range(300):
        kv_heads = dice.choice((1, 2, 3))
        heads, batch = kv_heads * dice.choice((1, 2, 3)), dice.choice((1, 2, 3, 5))
        n_q, n_kv = (
            dice.choice((1, 2, 3, 16, 17, 21, 22, 45, 46, 64, 90, 91, 181, 182, 362))
            for _ in range(2)
        )
        causal = dice.random() < 0.5
        bottom_right = causal and dice.random() < 0.5
        q, k = draw(batch, n_q, heads, 64), draw(batch, n_kv, kv_heads, 64)
        api.attention(q, k, k, causal=causal, bottom_right=bottom_right)
        workload = Workload(
            *(batch, heads, kv_heads, n_q, n_kv, 64, DType.FP16),
            causal=causal,
            bottom_right=bottom_right,
        )
        found = representative(workload)
        assert stands.setdefault(key_of(workload), found) == found
    assert operators.native.choices() == len(stands) + len(OneTuned.tuned)


def key_of(workload: Workload) -> tuple[object, ...]:
    def nearest(n: int) -> int:
        return (n * n).bit_length() // 2

    w, few = workload, workload.decode_shape
    sizes = (w.batch * w.kv_heads, w.seq_len_q)
    if not few:  # their tiles are
        sizes = (w.batch * w.heads, nearest(w.seq_len_q))
    return few, *sizes, w.heads // w.kv_heads, nearest(w.seq_len_kv), w.causal, w.bottom_right


def threads(operators: Operators) -> None:
    """Eight at once on the same new problems: no deadlock, and every launch is made."""
    stub, failed = Stub(), []
    lengths = [2**i + j for i in range(12) for j in (0, 1)]

    def work(seed: int) -> None:
        mine = random.Random(seed).sample(lengths, len(lengths))
        try:
            for n in mine:
                q = draw(1, n, 4)
                api.attention(q, q, q, causal=True)
        except Exception as error:
            failed.append(error)

    running = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(60)
    assert not any(thread.is_alive() for thread in running), "deadlock"
    assert not failed, failed
    assert len(stub.launched()) == 8 * len(lengths)


def fork(operators: Operators) -> None:
    """A child of a process that has only imported and set up goes on by itself, also where a thread
    of the parent held the locks."""
    os.register_at_fork(after_in_child=operators.forget)
    q = draw(1, 64, 4)
    for held in (False, True):
        if held:
            operators.plans._lock.acquire()
        child = os.fork()
        if child == 0:
            done = threading.Thread(target=lambda: api.attention(q, q, q), daemon=True)
            done.start()
            done.join(20)
            os._exit(int(done.is_alive()) or len(compiled) != 1)
        assert os.waitpid(child, 0)[1] == 0, held
        if held:
            operators.plans._lock.release()
    api.attention(q, q, q)
    Stub().launched()
    torch.cuda._is_in_bad_fork = lambda: True  # as after a call that used CUDA
    if os.fork() == 0:
        with pytest.raises(DriverError, match="spawn") as caught:
            api.attention(q, q, q)
        os._exit("\n" in str(caught.value) or bool(Stub().launched()))
    assert os.wait()[1] == 0
    api.attention(q, q, q)


def accuracies(operators: Operators) -> None:
    """What calls ask for where FA_TUNE_ACCURACY is exact: those that say nothing, one that says
    otherwise, one with a gradient, one of a packed batch, and torch's own."""
    asked, choice = [], operators.plans.choice

    def noted(workload: Workload, device: int) -> Choice:
        asked.append((workload.accuracy, choice(workload, device).variant))
        return choice(workload, device)

    operators.plans.choice = noted  # type: ignore[method-assign]
    q, starts = draw(1, 384, 4), torch.tensor([0, 384], dtype=torch.int32)
    api.attention(q, q, q)
    api.attention(q, q, q, accuracy="fast")
    api.attention(q.clone().requires_grad_(), q, q, sink=torch.zeros(4))
    packed_attention(q[0], q[0], q[0], Lengths(starts, starts, 384, 384), Traits())
    name = "_scaled_dot_product_flash_attention"
    with torch.library._scoped_library("aten", "IMPL") as library:
        for one in (name, f"{name}_backward"):
            library.impl(one, lambda *_, **__: None, "CPU", allow_override=True)
        override = sdpa.Override("CPU")
        getattr(torch.ops.aten, name)(*(q.transpose(1, 2),) * 3)
        override.remove()
    assert [word for word, _ in asked] == ["exact", "fast", "exact", "exact", "exact"], asked
    assert [families.config_of(v).exact for _, v in asked] == [True, False, True, True, True]
    # The same bits always: of fast kernels those of fp16 may give others.
    del asked[:]
    torch.use_deterministic_algorithms(True)
    other = draw(2, 640, 4)
    api.attention(other, other, other, accuracy="fast")
    api.attention(*[other.bfloat16()] * 3, accuracy="fast")
    ends, long = torch.tensor([0, 3000], dtype=torch.int32), draw(1, 3000, 4)[0]
    packed_attention(long, long, long, Lengths(ends, ends, 3000, 3000), Traits(exact=False))
    torch.use_deterministic_algorithms(False)
    assert [word for word, _ in asked] == ["exact", "fast", "exact"], asked
