"""A capture sees every call once, whoever makes it, and disturbs none; on the CPU, where torch has
one backend and ours are stood in for."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import fa_tune.op
from fa_tune.core.errors import StorageError
from fa_tune.op.capturing import hooks, recorder, tally
from tests.op.seen import capturing, draw

attend = torch.nn.functional.scaled_dot_product_attention


BOTH = {("forward", "cpu"): 1, ("backward", "cpu"): 1}


def block(*qkv: torch.Tensor) -> torch.Tensor:
    """Nothing but attention, so that inductor has nothing to compile in C++."""
    return attend(*qkv, is_causal=True)


def test_forward_and_backward_with_sizes_and_layout(tmp_path: Path) -> None:
    q, k = draw(2, 9, 6, 16, grad=True), draw(2, 11, 2, 16)
    with capturing(tmp_path) as seen:
        three = (t.transpose(1, 2) for t in (q, k, k))
        attend(*three, scale=0.5, enable_gqa=True).sum().backward()
    assert seen.counts() == BOTH
    usage = seen.one()
    p = usage.problem
    assert (p.batch, p.heads, p.kv_heads, p.seq_len_q, p.seq_len_kv) == (2, 6, 2, 9, 11)
    assert (p.d_head, p.d_head_v, p.scale, p.dtype, p.device) == (16, 16, 0.5, "float32", "cpu")
    assert (p.api, p.kind, p.mask, p.dropout) == ("sdpa", "dense", "full", False)
    assert usage.timed == 1
    assert usage.call_s
    assert "float32" in usage.served.why
    q = draw(1, 2, 8, 96)
    with capturing(tmp_path) as seen:
        attend(q, q, q, scale=96**-0.5)
    assert seen.one().problem.scale is None


@pytest.mark.parametrize(
    ("layout", "made"),
    [
        ("bhsd", lambda: [draw(2, 4, 8, 16) for _ in "qkv"]),
        ("bshd", lambda: [draw(2, 8, 4, 16).transpose(1, 2) for _ in "qkv"]),
        ("packed_qkv", lambda: draw(2, 8, 3, 4, 16).permute(2, 0, 3, 1, 4).unbind()),
        ("mixed", lambda: [draw(2, 8, 4, 16).transpose(1, 2), *[draw(2, 4, 8, 16)] * 2]),
        ("other", lambda: [draw(2, 4, 16, 8).transpose(2, 3) for _ in "qkv"]),
    ],
)
def test_layouts(tmp_path: Path, layout: str, made: Any) -> None:
    with capturing(tmp_path) as seen:
        attend(*made())
    assert seen.one().problem.layout == layout


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_compiled_graphs(tmp_path: Path, backend: str) -> None:
    torch.compiler.reset()
    run = torch.compile(block, fullgraph=True, backend=backend)
    qkv = [draw(1, 2, 8, 16, grad=True) for _ in "qkv"]
    run(*qkv).sum().backward()
    with capturing(tmp_path) as seen:
        run(*qkv).sum().backward()
    assert seen.counts() == BOTH
    assert seen.one().problem.mask == "causal"
    torch.compiler.reset()
    with capturing(tmp_path) as within:  # is counted when it runs
        run = torch.compile(block, fullgraph=True, backend=backend)
        for _ in range(3):
            run(*qkv).sum().backward()
    assert within.counts() == dict.fromkeys(BOTH, 3)


def test_threads_lose_no_call(tmp_path: Path) -> None:
    q = draw(1, 1, 4, 8)

    def run() -> None:
        for _ in range(200):
            attend(q, q, q)

    with capturing(tmp_path) as seen:
        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert seen.one().calls == 800


def test_contexts_within_another(tmp_path: Path) -> None:
    q = draw(1, 1, 4, 8)
    (tmp_path / "b").mkdir()
    with capturing(tmp_path) as outer:
        attend(q, q, q)
        with capturing(tmp_path / "b") as inner:
            attend(q, q, q)
        attend(q, q, q)
    attend(q, q, q)
    assert (outer.one().calls, inner.one().calls) == (3, 1)


def test_dropout_is_mathematics(tmp_path: Path) -> None:
    q = draw(1, 2, 8, 16, grad=True)
    with capturing(tmp_path) as seen:
        attend(q, q, q, dropout_p=0.5).sum().backward()
        torch.func.vmap(lambda t: attend(t, t, t))(draw(3, 1, 2, 8, 16))
    found = {u.served.by: u for u in seen.capture.usages}
    assert found["math"].problem.dropout
    assert found["math"].served.why == "dropout"
    assert found["cpu"].runs == 3


def test_masks_are_what_they_are(tmp_path: Path) -> None:
    q = draw(2, 2, 12, 16)
    hides = torch.ones(12, 12).tril().bool()
    added = torch.zeros(12, 12).masked_fill(~hides, torch.finfo(torch.float32).min)
    padded = torch.arange(12) < torch.tensor([[12], [7]])
    by_cudnn = torch.zeros(12, 12).masked_fill(~hides, -65504.0)
    kinds = {
        "causal": [hides, added, by_cudnn, hides.expand(2, 1, 12, 12), hides[None].clone()],
        "full+padding": [padded[:, None, None]],
        "bias": [torch.randn(1, 2, 12, 12)],
    }
    for truth, masks in kinds.items():
        for mask in masks:
            with capturing(tmp_path) as seen:
                attend(q, q, q, attn_mask=mask)
            assert seen.one().masks == {truth: 1}, (truth, mask.shape)
            assert seen.one().mask == truth
    q, mask = draw(1, 1, 8, 8), torch.ones(8, 8).tril().bool()
    with capturing(tmp_path) as seen:
        attend(q, q, q, attn_mask=mask)
        mask.fill_(True)
        attend(q, q, q, attn_mask=mask)
    assert seen.one().masks == {"causal": 1, "full": 1}
    assert seen.one().mask == "other"


def test_large_masks_are_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally, "MOST_ELEMENTS", 100)
    monkeypatch.setattr(tally, "ROWS", 9)
    q = draw(1, 1, 64, 8)
    with capturing(tmp_path) as seen:
        attend(q, q, q, attn_mask=torch.ones(64, 64).tril().bool().expand(1, 1, 64, 64))
    assert seen.one().mask == "causal"


def test_a_call_that_fails_fails_as_before_and_is_not_counted(tmp_path: Path) -> None:
    q = draw(1, 1, 4, 8)
    with pytest.raises(RuntimeError) as before:
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, q, q[..., :4])
    with capturing(tmp_path) as seen:
        with pytest.raises(RuntimeError) as within:
            torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, q, q[..., :4])
        attend(q, q, q)
    assert str(within.value) == str(before.value)
    assert seen.one().calls == 1


def test_a_fault_of_ours_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("q")

    monkeypatch.setattr(recorder, "problem_of", broken)
    q = draw(1, 1, 4, 8)
    expected = attend(q, q, q)
    with capturing(tmp_path) as seen:
        assert torch.equal(attend(q, q, q), expected)
    assert seen.capture.usages == ()
    assert "KeyError" in seen.capture.notes[0]


def test_forms_beyond_the_most_are_dropped_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "MOST_FORMS", 3)
    with capturing(tmp_path) as seen:
        for n in range(1, 6):
            q = draw(1, 1, n, 8)
            attend(q, q, q)
    assert len(seen.capture.usages) == 3
    assert seen.capture.processes[0].dropped == 2


def test_results_and_gradients_are_the_same(tmp_path: Path) -> None:
    q = draw(2, 2, 8, 16, grad=True)

    def run() -> list[torch.Tensor]:
        q.grad = None
        out = attend(q, q, q, is_causal=True)
        out.sin().sum().backward()
        assert q.grad is not None
        return [out, q.grad]

    before = run()
    with capturing(tmp_path):
        within = run()
    assert all(map(torch.equal, before, within))
    with capturing(tmp_path) as seen:
        qkv = [draw(1, 2, 8, 16, grad=True) for _ in "qkv"]
        checkpoint(block, *qkv, use_reentrant=False).sum().backward()
    assert seen.counts() == BOTH | {("forward", "cpu"): 2}


def test_the_file_is_written_when_the_program_fails(tmp_path: Path) -> None:
    q = draw(1, 1, 4, 8)
    context = capturing(tmp_path)
    seen = context.__enter__()
    attend(q, q, q)
    assert not context.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
    assert seen.one().calls == 1
    with pytest.raises(StorageError), fa_tune.op.capture("/proc/none/a.json"):
        pass


def test_kept_inputs_are_read_as_inputs(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    from fa_tune.core import input_files

    q, k = draw(2, 4, 8, 16), draw(2, 4, 10, 16)
    with capturing(tmp_path, keep_inputs=1) as seen:
        attend(q, k, k)
        attend(k, k, k)
    (kept,) = (path for usage in seen.capture.usages for path in usage.inputs)
    read = input_files.read(kept)
    assert (read.q, read.k) == ((2, 8, 4, 16), (2, 10, 4, 16))
    assert torch.equal(load_file(kept)["q"], q.transpose(1, 2))


def test_what_is_spent_stays_a_share_of_the_time() -> None:
    now = [0.0]
    budget = tally.Budget(lambda: now[0])
    spent = 0.0
    for _ in range(10_000):
        now[0] += 1e-3
        if budget.is_left:
            budget.spend(5e-4)
            spent += 5e-4
    assert spent <= tally.SHARE * now[0] + tally.MOST_SAVED_S + 5e-4
    now[0] += 1e6
    before = spent
    while budget.is_left:
        budget.spend(5e-4)
        spent += 5e-4
    assert spent - before <= tally.MOST_SAVED_S + 5e-4


def test_all_hooks_are_gone_afterwards(tmp_path: Path) -> None:
    before = {name: getattr(module, name) for module, name, *_ in hooks._FUNCTIONS}
    paths = [*sys.meta_path]
    with capturing(tmp_path):
        assert any(getattr(m, n) is not before[n] for m, n, *_ in hooks._FUNCTIONS)
    assert all(getattr(m, n) is before[n] for m, n, *_ in hooks._FUNCTIONS)
    assert sys.meta_path == paths
