"""A capture sees every call once, whoever makes it, and disturbs none; on the CPU, where torch has
one backend and ours are stood in for."""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import fa_tune.op
from fa_tune.core.errors import NoUsableVariant, StorageError
from fa_tune.op import fallback_warning, flash_attn_func, sdpa, state
from fa_tune.op.capturing import flex, hooks, recorder, tally
from fa_tune.op.chooser import Choice
from fa_tune.store.capture.schema import Capture, Served, Usage, load
from tests.op import test_sdpa, twins

attend = torch.nn.functional.scaled_dot_product_attention


class Seen:
    """What became of a capture."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def capture(self) -> Capture:
        return load(self.path)

    def counts(self) -> dict[tuple[str, str], int]:
        """Runs by operation and who served."""
        found: dict[tuple[str, str], int] = {}
        for usage in self.capture.usages:
            key = usage.problem.op, usage.served.by
            found[key] = found.get(key, 0) + usage.runs
        return found

    def one(self, op: str = "forward") -> Usage:
        (found,) = (u for u in self.capture.usages if u.problem.op == op)
        return found


@contextmanager
def capturing(folder: Path, **options: Any) -> Iterator[Seen]:
    seen = Seen(folder / "a.json")
    with fa_tune.op.capture(seen.path, **options):
        yield seen


def draw(*shape: int, grad: bool = False) -> torch.Tensor:
    return torch.randn(*shape).requires_grad_(grad)


BOTH = {("forward", "cpu"): 1, ("backward", "cpu"): 1}


def block(q: torch.Tensor) -> torch.Tensor:
    return attend(q * 2, q, q, is_causal=True).relu()


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


@pytest.mark.parametrize(
    ("layout", "made"),
    [
        ("bhsd", lambda: [draw(2, 4, 8, 16) for _ in "qkv"]),
        ("bshd", lambda: [draw(2, 8, 4, 16).transpose(1, 2) for _ in "qkv"]),
        ("packed_qkv", lambda: draw(2, 8, 3, 4, 16).permute(2, 0, 3, 1, 4).unbind()),
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
    q = draw(1, 2, 8, 16, grad=True)
    run(q).sum().backward()
    with capturing(tmp_path) as seen:
        run(q).sum().backward()
    assert seen.counts() == BOTH
    assert seen.one().problem.mask == "causal"


def test_what_is_compiled_within_is_counted_when_it_runs(tmp_path: Path) -> None:
    torch.compiler.reset()
    with capturing(tmp_path) as seen:
        run = torch.compile(block, fullgraph=True, backend="aot_eager")
        for _ in range(3):
            run(draw(1, 2, 8, 16, grad=True)).sum().backward()
    assert seen.counts() == dict.fromkeys(BOTH, 3)


def test_recomputation_is_counted(tmp_path: Path) -> None:
    with capturing(tmp_path) as seen:
        checkpoint(block, draw(1, 2, 8, 16, grad=True), use_reentrant=False).sum().backward()
    assert seen.counts() == BOTH | {("forward", "cpu"): 2}


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
    kinds = {
        "causal": [hides, added, hides.expand(2, 1, 12, 12), hides[None].clone()],
        "full+padding": [padded[:, None, None]],
        "bias": [torch.randn(1, 2, 12, 12)],
    }
    for truth, masks in kinds.items():
        for mask in masks:
            with capturing(tmp_path) as seen:
                attend(q, q, q, attn_mask=mask)
            assert seen.one().masks == {truth: 1}, (truth, mask.shape)
            assert seen.one().mask == truth


def test_large_masks_are_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally, "MOST_ELEMENTS", 100)
    monkeypatch.setattr(tally, "ROWS", 9)
    q = draw(1, 1, 64, 8)
    with capturing(tmp_path) as seen:
        attend(q, q, q, attn_mask=torch.ones(64, 64).tril().bool().expand(1, 1, 64, 64))
    assert seen.one().mask == "causal"


def test_a_mask_that_changes_is_looked_at_again(tmp_path: Path) -> None:
    q, mask = draw(1, 1, 8, 8), torch.ones(8, 8).tril().bool()
    with capturing(tmp_path) as seen:
        attend(q, q, q, attn_mask=mask)
        mask.fill_(True)
        attend(q, q, q, attn_mask=mask)
    assert seen.one().masks == {"causal": 1, "full": 1}
    assert seen.one().mask == "other"


# Ours and others' ------------------------------------------------------------------------------


def test_ours_in_torchs_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever of both began first or ends first, calls are seen and results are right."""
    made = sdpa.Override
    monkeypatch.setattr(sdpa, "Override", lambda: made("CPU"))
    monkeypatch.setattr(fallback_warning, "_told", set())
    q, wide = draw(1, 2, 8, 16).half(), draw(1, 2, 8, 17).half()[..., :16]
    name = "_scaled_dot_product_flash_attention"
    with twins.registered(), torch.library._scoped_library("aten", "IMPL") as library:
        library.impl(name, test_sdpa.torchs, "CPU", allow_override=True)
        library.impl(f"{name}_backward", test_sdpa.torchs_backward, "CPU", allow_override=True)
        call = getattr(torch.ops.aten, name)
        for enabled_first in (False, True):
            monkeypatch.setattr(fallback_warning, "_told", set())
            if enabled_first:
                sdpa.enable_sdpa()
            with capturing(tmp_path) as seen:
                sdpa.enable_sdpa()
                assert not test_sdpa.is_torchs(call(q, q, q))
                with pytest.warns(fallback_warning.FallbackWarning):
                    assert test_sdpa.is_torchs(call(wide, wide, wide))
                sdpa.disable_sdpa()
                assert test_sdpa.is_torchs(call(q, q, q))
            assert test_sdpa.is_torchs(call(q, q, q))
            assert seen.counts() == {("forward", "fa_tune"): 1, ("forward", "flash"): 2}
            whys = {u.served.why for u in seen.capture.usages if u.served.by == "flash"}
            assert any("16 bytes" in why for why in whys)


def test_our_operator_with_what_was_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, twins_on_the_cpu: None
) -> None:
    asked = []

    class Plans:
        def choice(self, workload: Any, device: int) -> Any:
            asked.append(workload)
            if workload.op == "backward":
                raise NoUsableVariant("none")
            variant = types.SimpleNamespace(key="sm90:x")
            return Choice(variant, None, "measured on it", True, exact=True)  # type: ignore[arg-type]

    monkeypatch.setattr(state, "operators", lambda: types.SimpleNamespace(plans=Plans()))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    q = draw(2, 16, 4, 32, grad=True)
    with capturing(tmp_path) as seen:
        half = q.half()
        out, lse = torch.ops.fa_tune.fwd_lse(half, half, half, True, False, None)
        torch.ops.fa_tune.bwd(out, half, half, half, out, lse, None, True)
    assert seen.counts() == {("forward", "fa_tune"): 1, ("backward", "fa_tune"): 1}
    served = seen.one().served
    assert (served.kernel, served.entry, served.why) == ("sm90:x", "exact", "measured on it")
    assert seen.one("backward").served.why == "none"
    assert {w.key for w in asked} == {
        "b2_h4_kv4_q16_k16_d32_fp16_causal_lse",
        "backward_b2_h4_kv4_q16_k16_d32_fp16_causal",
    }


def test_packed_lengths(tmp_path: Path, twins_on_the_cpu: None) -> None:
    q, ends = draw(30, 2, 32).half(), torch.tensor([0, 3, 10, 30], dtype=torch.int32)
    with capturing(tmp_path) as seen:
        torch.ops.fa_tune.packed_fwd(q, q, q, ends, ends, 20, 20, True)
    usage = seen.one()
    p = usage.problem
    assert (p.kind, p.batch, p.seq_len_q, p.total_q, p.total_kv) == ("packed", 3, 20, 30, 30)
    assert p.mask == "causal"
    assert usage.lengths_q == usage.lengths_kv == (3, 3, 3, 7, 7, 7, 20, 20, 20)


def test_what_stands_in_for_ours_and_why(tmp_path: Path) -> None:
    q, cache = draw(2, 1, 4, 32).half(), draw(2, 16, 4, 32).half()
    lengths = torch.tensor([5, 16], dtype=torch.int32)
    with capturing(tmp_path) as seen:
        flash_attn_func(q, q, q, causal=True)
        fa_tune.op.flash_attn_with_kvcache(q, cache, cache, cache_seqlens=lengths)
    dense, cached = sorted(seen.capture.usages, key=lambda u: u.problem.kind, reverse=True)
    for usage in (dense, cached):
        assert (usage.served.by, usage.calls) == ("products", 1)
        assert "on the cpu" in usage.served.why
    assert (cached.problem.kind, cached.problem.seq_len_kv) == ("cached", 16)
    assert set(cached.lengths_kv) == {5, 16}


def test_flash_attentions_own_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module that its Python calls, imported within the context; its argument lists are those
    of FlashAttention 2.8."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "flash_attn_2_cuda.py").write_text(
        "def fwd(q, *others): return [q]\n"
        "varlen_fwd = fwd_kvcache = fwd\n"
        "def bwd(dout, *others): return [dout]\nvarlen_bwd = bwd\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    q, packed = draw(2, 8, 4, 32).half(), draw(12, 4, 32).half()
    ends = torch.tensor([0, 4, 12], dtype=torch.int32)
    lengths, table = torch.tensor([3, 7], dtype=torch.int32), torch.zeros(2, 3, dtype=torch.int32)
    with capturing(tmp_path) as seen:
        import flash_attn_2_cuda as module  # type: ignore[import-not-found]

        none = (None,) * 3
        for _ in range(2):
            module.fwd(q, q, q, None, None, 0.0, 0.5, True, -1, -1, 0.0, False, None)
        module.bwd(q, q, q, q, q, q, *none, None, 0.0, 0.5, False, 5, -1, 0.0, False)
        of_packed = (packed, packed, packed, None, ends, ends, *none, None, 8, 8)
        module.varlen_fwd(*of_packed, 0.0, 0.5, False, True, -1, -1, 0.0, False, None)
        module.fwd_kvcache(
            *(q[:, :1], q, q, None, None, lengths, *none, None, table, None, None),
            *(0.5, True, -1, -1, 0.0, True, 0),
        )
    monkeypatch.delitem(sys.modules, "flash_attn_2_cuda")
    found = {(u.problem.op, u.problem.kind): u for u in seen.capture.usages}
    assert {u.served.by for u in found.values()} == {"flash_attn"}
    assert found["forward", "dense"].calls == 2
    assert found["forward", "dense"].problem.mask == "causal"
    assert found["backward", "dense"].problem.window_left == 5
    assert set(found["forward", "packed"].lengths_q) == {4, 8}
    cached = found["forward", "cached"].problem
    assert (cached.page_size, cached.seq_len_kv, cached.mask) == (8, 24, "causal_br")


@pytest.mark.filterwarnings("ignore")
def test_flex_attention(tmp_path: Path) -> None:
    from torch.nn.attention.flex_attention import flex_attention

    q = draw(1, 2, 16, 16)  # on the CPU it has no gradients
    with capturing(tmp_path) as seen:
        flex_attention(q, q, q)
    assert seen.counts() == {("forward", "flex_attention"): 1}
    assert seen.one().problem.mask == "blocks"


def test_compiled_flex_attention_is_known_by_its_kernels() -> None:
    class Autotuner:
        def __init__(self, name: str, *names: str) -> None:
            self.inductor_meta = {"kernel_name": name}
            self.fn = types.SimpleNamespace(arg_names=names)

        def run(self, *args: Any, stream: int) -> int:
            return stream

    told = recorder.Recorder()
    names = ("arg_Q", "arg_K", "arg_V", "arg_LSE", "arg_KV_NUM_BLKS", "out_ptr0")
    q = draw(1, 2, 16, 16)
    with flex.compiled(told, types.SimpleNamespace(CachingAutotuner=Autotuner)):
        for name in ("triton_tem_fused_flex_attention_0", "triton_poi_fused_add_0"):
            assert Autotuner(name, *names).run(q, q, q, q[..., 0], q, q, stream=3) == 3
        backward = Autotuner("triton_tem_fused_flex_attention_backward_1", *names)
        assert backward.run(q, q, q, q[..., 0], q, q, stream=3) == 3
    found = told.usages(lambda problem, by, why: Served(by))
    assert [(u.problem.op, u.problem.mask, u.calls) for u in sorted(found, key=str)] == [
        ("backward", "blocks", 1),
        ("forward", "blocks", 1),
    ]


def test_graphs_count_by_replays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    state_of = {"captures": False}
    monkeypatch.setattr(recorder, "is_capturing", lambda: state_of["captures"])

    class Graph:
        def capture_begin(self) -> None:
            state_of["captures"] = True

        def capture_end(self) -> None:
            state_of["captures"] = False

        def replay(self) -> None:
            pass

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    q = draw(1, 1, 4, 8)
    with capturing(tmp_path) as seen:
        attend(q, q, q)
        graph = Graph()
        graph.capture_begin()
        attend(q, q, q)
        attend(q, q, q)
        graph.capture_end()
        for _ in range(5):
            graph.replay()
    usage = seen.one()
    assert (usage.calls, usage.captured, usage.replayed, usage.timed) == (1, 2, 10, 1)
    assert usage.time_s == pytest.approx(11 * (usage.call_s or 0))


# Nothing is disturbed --------------------------------------------------------------------------


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
