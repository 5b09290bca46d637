"""The operators in Python: what they hand to a kernel, refuse and remember."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fa_tune import families
from fa_tune.build.native import abi
from fa_tune.build.native.call import problem_of
from fa_tune.core.arch import limits
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.hooks import register
from fa_tune.core.tensors import workload_of
from fa_tune.core.workload import DType, Workload
from fa_tune.families.plan import TensorRole
from fa_tune.op import plans
from fa_tune.op.kv_cache import Cache, attend
from fa_tune.op.operands import Lengths
from fa_tune.op.plans import Memo, Plans
from fa_tune.op.python_op import PythonOp
from fa_tune.op.state import Operators
from fa_tune.op.traits import Traits

TUNED = Workload(2, 4, 4, 1000, 1000, 128, DType.FP16)


class Recorder:
    """A kernel that only notes its launches."""

    def __init__(self, artifact: Any) -> None:
        (config, traits) = artifact
        self.plan = families.of(config).plan(config, traits, "sm_80").plan
        self.launched: list[tuple[abi.Problem, abi.Tensors, int]] = []
        self.prepared: list[int] = []

    def prepare(self, device: int) -> None:
        self.prepared.append(device)

    def workspace_bytes(self, problem: abi.Problem, device: int) -> int:
        return 0

    def launch(self, problem: Any, tensors: abi.Tensors, stream: int, device: int) -> None:
        self.launched.append((problem, tensors, stream))


class OneTuned:
    """Chooses the default for an A100."""

    tuned = frozenset({TUNED})

    def __init__(self) -> None:
        self.asked: list[tuple[Workload, Workload]] = []

    def choose(self, workload: Workload, like: Workload) -> Any:
        self.asked.append((workload, like))
        arch = limits((8, 0))
        usual = families.defaults(workload.d_head, workload.dtype, arch)
        config = (families.defaults_for(workload, arch) if workload.cached else usual)[0]
        return SimpleNamespace(artifact=(config, families.of(config).traits(config, workload)))


@pytest.fixture
def chooser() -> OneTuned:
    return OneTuned()


@pytest.fixture
def made(chooser: OneTuned) -> Plans:
    return Plans(Recorder, lambda device: chooser)  # type: ignore[arg-type,return-value]


def workload(n_q: int, n_kv: int, **others: Any) -> Workload:
    return Workload(2, 4, 4, n_q, n_kv, 128, DType.FP16, **others)


def test_a_bucket_has_one_kernel_for_whole_blocks_and_one_for_others(
    made: Plans, chooser: OneTuned
) -> None:
    memo = Memo(made)
    whole, odd = memo.kernel(workload(1024, 1024), 0), memo.kernel(workload(1000, 1001), 0)
    assert whole.plan.ragged == 0
    assert odd.plan.ragged == 1
    for n in range(900, 1200):
        expected = whole if n % whole.plan.block_kv == 0 else odd
        assert memo.kernel(workload(1024, n), 0) is expected
    assert len(chooser.asked) == 2
    assert memo.kernel(workload(1024, 1024, softmax_scale=0.5), 0) is whole
    assert len(chooser.asked) == 2


def test_a_tuned_workload_is_asked_for_by_itself(made: Plans, chooser: OneTuned) -> None:
    memo = Memo(made)
    memo.kernel(workload(1000, 1008), 0)
    memo.kernel(TUNED, 0)
    memo.kernel(TUNED, 0)
    assert [like for _, like in chooser.asked][1:] == [TUNED]


def test_a_cache_is_asked_for_as_such(made: Plans, chooser: OneTuned) -> None:
    """Its sequences may differ in length, which other configs suit."""
    memo = Memo(made, cached=True)
    kernels = [memo.kernel(workload(1, 8000, lse=lse), 0) for lse in (False, True)]
    assert [like.cached for _, like in chooser.asked] == [True, True]
    assert kernels[0] is not kernels[1]
    assert memo.kernel(workload(1, 8001), 0) is kernels[0]
    assert memo.kernel(workload(1, 20_000), 0) is kernels[0], "the same default"
    assert [like.seq_len_kv for _, like in chooser.asked] == [8192, 8192, 16384]


def test_a_cache_is_prepared_for_a_capture(made: Plans, monkeypatch: pytest.MonkeyPatch) -> None:
    operators = Operators.__new__(Operators)
    operators.native = None
    operators._memo, operators._with_cache = Memo(made), Memo(made, cached=True)
    operators.prepare(workload(1, 8000, causal=True, cache_lengths="equal", page_size=16), 0)
    operators.prepare(workload(1, 8000, cache_lengths="uniform-1"), 0)
    monkeypatch.setattr(plans, "is_capturing", lambda: True)
    for traits in ({"causal": True, "bottom_right": True}, {}):
        assert operators.kernel_with_cache(workload(1, 8100, **traits), 0)


def test_nothing_is_chosen_during_a_capture(
    made: Plans, chooser: OneTuned, monkeypatch: pytest.MonkeyPatch
) -> None:
    memo = Memo(made)
    memo.kernel(workload(1024, 1024), 0)
    monkeypatch.setattr(plans, "is_capturing", lambda: True)
    memo.kernel(workload(1024, 1024), 0)
    with pytest.raises(InvalidConfig, match=r"call fa_tune\.op\.prepare\(\)"):
        memo.kernel(workload(64, 64), 0)
    assert len(chooser.asked) == 1


def test_tensors_become_a_launch(made: Plans, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = SimpleNamespace(cuda_stream=17)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    memo = Memo(made)
    op = PythonOp(memo.kernel)
    q = torch.zeros(2, 6, 64, 128, dtype=torch.float16).transpose(1, 2)
    k = torch.zeros(2, 64, 3, 128, dtype=torch.float16)
    out, lse = op("fwd_lse", q, k, k, True, False, 0.5)
    assert out.is_contiguous()
    assert (lse.shape, lse.dtype) == ((2, 6, 64), torch.float32)
    expected = Workload(2, 6, 3, 64, 64, 128, DType.FP16, causal=True, lse=True, softmax_scale=0.5)
    kernel = memo.kernel(expected, q.device.index)
    assert isinstance(kernel, Recorder)
    ((problem, tensors, on),) = kernel.launched
    assert bytes(problem) == bytes(problem_of(expected))
    assert on == 17
    given = tensors.of[TensorRole.Q]
    strides = (given.batch_stride, given.seq_stride, given.head_stride)
    assert (given.address, strides) == (q.data_ptr(), q.stride()[:3])
    assert tensors.of[TensorRole.O].address == out.data_ptr()
    assert tensors.of[TensorRole.LSE].address == lse.data_ptr()
    with pytest.raises(InvalidConfig, match="out must be"):
        op("fwd_out", q, k, k, k, None)
    with pytest.raises(InvalidConfig):
        op("fwd_out", q, k, k, out[:, :, :1].expand_as(out), None)
    with pytest.raises(InvalidConfig, match="lse must be"):
        op("fwd_out", q, k, k, out, lse[:1])


def test_a_v_without_columns_is_refused(made: Plans) -> None:
    """A workload would take it for one of Q's."""
    op = PythonOp(Memo(made).kernel)
    q = torch.zeros(1, 64, 2, 128).half()
    v = q[..., :0]
    ends = torch.tensor([0, 64], dtype=torch.int32)
    with pytest.raises(InvalidConfig):
        op("fwd", q, q, v)
    with pytest.raises(InvalidConfig):
        op("packed_fwd", q[0], q[0], v[0], ends, ends, 64, 64, *Traits())
    with pytest.raises(InvalidConfig):
        workload_of(q, q, v)
    with pytest.raises(InvalidConfig):
        attend(q, Cache(q, v, ends[1:]))


def test_a_packed_batch_with_a_score_hook_becomes_a_launch(
    made: Plans, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each hook has a kernel of its own, which gets where the sequences begin."""
    stream = SimpleNamespace(cuda_stream=17)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    texts = (
        f"__device__ float score_hook(float s, int b, int h, int q, int k) {{ return {n} + s; }}"
        for n in "12"
    )
    memo, (one, other) = Memo(made), map(register, texts)
    op = PythonOp(memo.kernel)
    q, k = torch.zeros(9, 6, 128).half(), torch.zeros(70, 3, 128).half()
    cum_q, cum_kv = (torch.tensor(c, dtype=torch.int32) for c in ([0, 4, 9], [0, 64, 70]))
    lengths = Lengths(cum_q, cum_kv, 5, 64)
    out = op("packed_fwd", q, k, k, *lengths, *Traits(True, sink=torch.zeros(6), score_hook=one))
    expected = Workload(
        *(2, 6, 3, 5, 64, 128, DType.FP16),
        causal=True,
        sink=True,
        score_hook=one,
        packed=True,
        total_q=9,
        total_kv=70,
    )
    kernel = memo.kernel(expected, q.device.index)
    assert isinstance(kernel, Recorder)
    ((problem, tensors, _),) = kernel.launched
    assert bytes(problem) == bytes(problem_of(expected))
    assert tensors.of[TensorRole.O].address == out.data_ptr()
    assert tensors.of[TensorRole.CU_SEQLENS_Q].address == cum_q.data_ptr()
    assert tensors.of[TensorRole.CU_SEQLENS_KV].address == cum_kv.data_ptr()
    op("packed_fwd", q, k, k, *lengths, *Traits(True, sink=torch.zeros(6), score_hook=other))
    assert len(kernel.launched) == 1
