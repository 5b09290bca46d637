"""What an error costs: the item, or the whole process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cupy
import pytest

from fa_tune.core.model import Outcome, Variant

if not TYPE_CHECKING:
    pytest.importorskip("torch", reason="torch is not installed: no jobs to test")

import torch

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.jobs import KernelItem
from fa_tune.core.workload import DType, Workload
from fa_tune.families.launch import TensorArg
from fa_tune.gpu import runners
from fa_tune.gpu.guard import first_line, guarded, is_cuda_error, use_device
from fa_tune.operations.base import Problem
from tests.gpu.items import launch_args
from tests.tensors import qkv


class StickyError(BaseException):
    """A real worker does not survive this."""


class Spoken:
    def __init__(self) -> None:
        self.failures: list[tuple[str, object, str]] = []

    def failed(self, item: str, outcome: object, reason: str) -> None:
        self.failures.append((item, outcome, reason))

    def sticky_error(self, item: str, reason: str) -> None:
        raise StickyError(item, reason)


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    return Spoken()


def raising(error: BaseException) -> Any:
    def action() -> None:
        raise error

    return action


@pytest.mark.parametrize(("result", "given"), [(5, 5), (0.0, 0.0), (None, True), ([], [])])
def test_a_result_is_handed_on_and_none_of_it_is_success(
    report: Any, result: Any, given: Any
) -> None:
    assert guarded(report, "a", lambda: result) == given
    assert report.failures == []


def test_a_refusal_costs_the_item(report: Any) -> None:
    error = RuntimeError("No available kernel. Aborting execution.\nC++ trace")
    assert guarded(report, "a", raising(error)) is None
    text = "RuntimeError: No available kernel. Aborting execution."
    assert report.failures == [("a", Outcome.CRASHED, text)]


def test_a_workload_that_cannot_be_taken_is_rejected_in_its_own_words(report: Any) -> None:
    assert guarded(report, "a", raising(InvalidConfig("cuDNN does not take it"))) is None
    assert report.failures == [("a", Outcome.REJECTED, "cuDNN does not take it")]


def test_too_little_memory_costs_the_item(report: Any) -> None:
    error = torch.OutOfMemoryError("tried to allocate 2 GiB\nmore")
    assert guarded(report, "a", raising(error)) is None
    assert report.failures == [("a", Outcome.CRASHED, "out of GPU memory: tried to allocate 2 GiB")]


def test_an_error_of_the_gpu_costs_the_process(report: Any) -> None:
    error = RuntimeError("CUDA error: an illegal memory access was encountered\nhints")
    with pytest.raises(StickyError) as caught:
        guarded(report, "a", raising(error))
    assert caught.value.args == ("a", "CUDA error: an illegal memory access was encountered")


def test_an_error_that_shows_only_afterwards_does_too(
    report: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = RuntimeError("CUDA error: unspecified launch failure")
    monkeypatch.setattr(torch.cuda, "synchronize", raising(error))
    with pytest.raises(StickyError):
        guarded(report, "a", lambda: 5)


def test_cupys_errors_are_the_gpus() -> None:
    error = cupy.cuda.driver.CUDADriverError
    made = error.__new__(error)
    assert is_cuda_error(made)
    assert not is_cuda_error(ValueError("a bug of ours"))


def test_the_first_line_of_an_error_without_text() -> None:
    assert first_line(ValueError()) == "ValueError"
    assert first_line(ValueError("one\ntwo")) == "one"


def test_launch_arguments_are_addresses_and_strides_in_elements() -> None:
    whole = torch.zeros(2, 7, 5, 8, dtype=torch.float16)
    part = whole[:, :, 2:]
    argument = TensorArg.of(part)
    assert argument.strides == (7 * 5 * 8, 5 * 8, 8)
    assert argument.address == whole.data_ptr() + 2 * 8 * 2
    lse = torch.zeros(2, 3, 7)
    args = launch_args(qkv(part, whole, whole), part, lse)
    assert (args.q, args.o) == (argument, argument)
    assert args.lse.address == lse.data_ptr()
    assert launch_args(qkv(part, whole, whole), part).lse.address == 0


def test_fp32_products_are_not_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    class Device:
        def __init__(self, index: int) -> None:
            assert index == 1

        def use(self) -> None:
            pass

    monkeypatch.setattr(cupy.cuda, "Device", Device, raising=False)
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        use_device(1)
        assert torch.backends.cuda.matmul.allow_tf32 is False
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def test_one_kernel_serves_all_input_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it allocates at its first launch is there for the others, which a graph may hold."""
    loaded: list[str] = []
    launched: list[torch.Tensor] = []

    class Loaded:
        def __init__(self, variant: Variant, *files: str) -> None:
            loaded.append(variant.key)

        def launch(self, workload: object, args: torch.Tensor, stream: int) -> None:
            launched.append(args)

    sets = [torch.zeros(1), torch.ones(1), torch.ones(2)]
    stream = type("Stream", (), {"cuda_stream": 0})
    monkeypatch.setattr(runners, "Kernel", Loaded)
    monkeypatch.setattr(runners, "named_args", lambda tensors: tensors["q"])
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    workload = Workload(1, 8, 1, 1, 1024, 128, DType.BF16)
    item = KernelItem("decode:a config", "a.cubin", "symbol")
    runner = runners.runner_of(item)
    for tensor in sets:
        runner.bind(Problem(workload, {"q": tensor}, {}))()
    assert loaded == ["decode:a config"]
    assert all(a is b for a, b in zip(launched, sets, strict=True))
