"""The operators in Python: what they hand to a kernel, refuse and remember."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

if not TYPE_CHECKING:
    pytest.importorskip("torch", reason="torch is not installed: no operators")

import torch

from fa_tune import families
from fa_tune.core.arch import limits
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import DType, Workload
from fa_tune.families.base import LaunchArgs
from fa_tune.op import plans
from fa_tune.op.plans import Memo, Plans
from fa_tune.op.python_op import PythonOp

TUNED = Workload(2, 4, 4, 1000, 1000, 128, DType.FP16)


class Recorder:
    """A kernel that only notes its launches."""

    def __init__(self, artifact: Any) -> None:
        (config, traits) = artifact
        self.plan = families.of(config).plan(config, traits, "sm_80").plan
        self.launched: list[tuple[Workload, LaunchArgs, int]] = []
        self.prepared: list[int] = []

    def prepare(self, device: int) -> None:
        self.prepared.append(device)

    def workspace_bytes(self, workload: Workload, device: int) -> int:
        return 0

    def launch(self, workload: Workload, args: LaunchArgs, stream: int, device: int) -> None:
        self.launched.append((workload, args, stream))


class OneTuned:
    """Chooses the default for an A100."""

    tuned = frozenset({TUNED})

    def __init__(self) -> None:
        self.asked: list[tuple[Workload, Workload]] = []

    def choose(self, workload: Workload, like: Workload, *, takes_cache: bool) -> Any:
        assert not takes_cache
        self.asked.append((workload, like))
        config = families.defaults(workload.d_head, workload.dtype, limits((8, 0)))[0]
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
    out, lse = op.fwd_lse(q, k, k, True, False, 0.5)
    assert out.is_contiguous()
    assert (lse.shape, lse.dtype) == ((2, 6, 64), torch.float32)
    expected = Workload(2, 6, 3, 64, 64, 128, DType.FP16, causal=True, lse=True, softmax_scale=0.5)
    kernel = memo.kernel(expected, q.device.index)
    assert isinstance(kernel, Recorder)
    ((given, args, on),) = kernel.launched
    assert given == expected
    assert on == 17
    assert (args.q.address, args.q.strides) == (q.data_ptr(), q.stride()[:3])
    assert (args.o.address, args.lse.address) == (out.data_ptr(), lse.data_ptr())
    with pytest.raises(InvalidConfig, match="out must be"):
        op.fwd_out(q, k, k, k, None)
    with pytest.raises(InvalidConfig, match="lse must be"):
        op.fwd_out(q, k, k, out, lse[:1])
