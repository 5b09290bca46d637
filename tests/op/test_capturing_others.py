"""A capture sees our own calls, what stands in for them, and others' functions."""

from __future__ import annotations

import sys
import types
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

import fa_tune.op
from fa_tune.core.errors import NoUsableVariant
from fa_tune.op import fallback_warning, flash_attn_func, sdpa, state
from fa_tune.op.capturing import flex, recorder, tally
from fa_tune.op.chooser import Choice
from fa_tune.store.capture.schema import Served
from tests.op import test_sdpa, twins
from tests.op.seen import capturing, draw

attend = torch.nn.functional.scaled_dot_product_attention


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


def test_times_of_a_gpu_are_read_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose calls the host was late with count only where there are no others."""
    now = {"device": 0.0, "done": 0.0}

    class Event:
        def __init__(self, **_: object) -> None:
            self.at = -1.0

        def record(self) -> None:
            self.at = now["device"]

        def query(self) -> bool:
            return self.at <= now["done"]

        def elapsed_time(self, end: Any) -> float:
            found: float = end.at - self.at
            return found

    for name, stand_in in (
        ("Event", Event),
        ("_sleep", lambda cycles: None),
        ("device", lambda device: nullcontext()),
    ):
        monkeypatch.setattr(torch.cuda, name, stand_in)
    clock, counts = tally.Clock(tally.Budget()), tally.Counts()
    host = [0.0]
    monkeypatch.setattr(tally.time, "perf_counter", lambda: host[0])
    for took_ms, host_s in ((9.0, 1.0), (8.0, 1.0), (5.0, 1e-6), (3.0, 1e-6), (4.0, 1e-6)):
        timed = clock.begin(torch.device("cuda", 0))
        host[0] += host_s
        now["device"] += took_ms
        clock.end(timed, counts)
    clock.read()
    assert counts.call_s is None, "nothing is waited for"
    now["done"] = 9.0 + 8.0
    clock.read()
    assert counts.call_s == pytest.approx(8e-3)
    now["done"] = 100.0
    clock.read()
    assert counts.call_s == pytest.approx(3.5e-3)


def test_a_gpu_that_has_failed_loses_times_and_no_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access\nand more")

    monkeypatch.setattr(tally.Clock, "read", fail)
    q = draw(1, 1, 4, 8)
    with capturing(tmp_path) as seen:
        attend(q, q, q)
    assert seen.one().calls == 1
    assert "illegal memory access" in seen.capture.notes[0]


def test_a_cache_in_a_graph(tmp_path: Path) -> None:
    q, cache = draw(2, 1, 4, 32).half(), draw(2, 16, 4, 32).half()
    lengths = torch.tensor([5, 16], dtype=torch.int32)
    problem = (lengths, None, None, None, False, False, None, -1, -1, 0.0, None)
    with capturing(tmp_path) as seen:
        torch.ops.fa_tune.cache_fwd(q, cache, cache, *problem)
    assert (seen.one().problem.kind, seen.one().calls) == ("cached", 1)
