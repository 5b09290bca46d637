"""What an error costs: the item, or the whole process."""

from typing import Any

import cupy
import pytest

from fa_tune.core.model import Outcome

pytest.importorskip("torch", reason="torch is not installed: no jobs to test")

import torch

from fa_tune.core.errors import DriverError, InvalidConfig, first_line
from fa_tune.gpu.guard import guarded, is_cuda_error, use_device


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


def test_a_users_source_that_does_not_compile_is_told_by_the_compilers_line(report: Any) -> None:
    kind = type("CompileException", (Exception,), {})  # as CuPy's
    log = 'mine.cu(1): warning: unused\nmine.cu(3): error: expected a ";"\n\n1 error detected'
    assert guarded(report, "a", raising(kind(log))) is None
    assert report.failures == [("a", Outcome.COMPILE_FAILED, 'mine.cu(3): error: expected a ";"')]


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


def test_errors_of_cupy_and_of_the_core_are_the_gpus() -> None:
    error = cupy.cuda.driver.CUDADriverError
    made = error.__new__(error)
    assert is_cuda_error(made)
    assert is_cuda_error(DriverError("cuLaunchKernel: CUDA_ERROR_INVALID_VALUE (error 1)"))
    assert not is_cuda_error(ValueError("a bug of ours"))


def test_the_first_line_of_an_error_without_text() -> None:
    assert first_line(ValueError()) == "ValueError"
    assert first_line(ValueError("one\ntwo")) == "one"


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
