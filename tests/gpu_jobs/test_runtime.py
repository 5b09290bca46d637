"""What a program gets from `fa_tune.runtime.dispatch`, as far as that can be told without a GPU."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from fa_tune import families
from fa_tune.core.arch import limits
from fa_tune.core.errors import InvalidConfig, NoUsableVariant
from fa_tune.core.model import Outcome, Variant
from fa_tune.core.workload import DType, Workload, benchmark_workload
from fa_tune.store.registry import file as registry_file
from fa_tune.store.registry.schema import Entry, Registry
from tests.store.registry.conftest import MakeEntry, make_entry  # noqa: F401 - a fixture

if not TYPE_CHECKING:
    pytest.importorskip("torch", reason="torch is not installed: no tensors to run on")

import torch

import fa_tune.runtime
from fa_tune.core.tensors import workload_of
from fa_tune.op import chooser
from fa_tune.runtime import dispatch as runtime
from fa_tune.runtime.dispatch import Attention

WORKLOAD = benchmark_workload(4096, 128, DType.FP16)
H200 = limits((9, 0))


def tensor(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)


def test_a_workload_is_what_tensors_make() -> None:
    q, k = tensor(2, 10, 8, 64), tensor(2, 30, 4, 64)
    assert workload_of(q, k, k) == Workload(2, 8, 4, 10, 30, 64, DType.FP16)
    found = workload_of(q, k, k, causal=True, bottom_right=True, lse=True, softmax_scale=0.5)
    assert (found.mask, found.lse, found.softmax_scale) == ("causal_br", True, 0.5)
    bf16 = [t.bfloat16() for t in (q, k, k)]
    assert workload_of(*bf16).dtype is DType.BF16


@pytest.mark.parametrize(
    ("q", "k", "v", "said"),
    [
        ((2, 10, 8), (2, 10, 8, 64), (2, 10, 8, 64), "must be [batch, seq, heads, d_head]"),
        ((2, 10, 8, 64), (2, 10, 8, 64), (2, 11, 8, 64), "V like K but for d_head"),
        ((2, 10, 8, 64), (3, 10, 8, 64), (3, 10, 8, 64), "differ in batch or d_head"),
        ((2, 10, 8, 64), (2, 10, 8, 32), (2, 10, 8, 32), "differ in batch or d_head"),
        ((2, 10, 8, 64), (2, 10, 3, 64), (2, 10, 3, 64), "do not divide"),
    ],
)
def test_tensors_that_make_none_are_refused(
    q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], said: str
) -> None:
    with pytest.raises(InvalidConfig) as caught:
        workload_of(tensor(*q), tensor(*k), tensor(*v))
    assert said in str(caught.value)


def test_another_dtype_is_refused() -> None:
    q = tensor(1, 8, 1, 64)
    for other in (q.float(), q.bfloat16()):
        with pytest.raises(InvalidConfig, match="must all be fp16 or all bf16"):
            workload_of(q, other, other)
    with pytest.raises(InvalidConfig, match="bottom_right aligns a causal mask"):
        workload_of(q, q, q, causal=False, bottom_right=True)


# Which kernel -----------------------------------------------------------------------------------


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Variant]:
    """Everything compiles at once, on an H200 that is not there; what was asked for."""
    asked: list[Variant] = []

    def build(requests: Any, *_: object, **__: object) -> list[Any]:
        asked.extend(r.variant for r in requests)
        made = SimpleNamespace(cubin="x.cubin", symbols=("x",), traits="plain", arch="sm_90")
        return [SimpleNamespace(artifact=made, outcome=Outcome.OK, reason="") for _ in requests]

    properties = SimpleNamespace(name="NVIDIA H200", major=9, minor=0, multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(torch.cuda, "device", lambda index: nullcontext())
    monkeypatch.setattr(chooser, "build", build)
    monkeypatch.setattr(runtime, "CompiledKernel", lambda item: Variant.from_key(item.subject))
    return asked


def attention(folder: Path, *entries: Entry) -> Attention:
    registry_file.save(folder / "r.json", Registry.of(entries))
    return Attention(folder / "r.json", cache_dir=folder)


def test_the_entry_of_the_very_workload_runs(
    tmp_path: Path,
    built: list[Variant],
    make_entry: MakeEntry,  # noqa: F811
) -> None:
    entry = make_entry(4096)
    run = attention(tmp_path, entry, make_entry(8192))
    found = run.chosen(WORKLOAD)
    assert found.from_registry
    assert found.variant == entry.chosen
    assert "measured on" in found.why
    assert "other kernel sources" in found.why
    assert run.chosen(WORKLOAD) is found, "compiled and loaded once"
    assert built == [entry.chosen]


def test_without_an_entry_the_devices_default_runs(
    tmp_path: Path,
    built: list[Variant],
    make_entry: MakeEntry,  # noqa: F811
) -> None:
    default = families.variant(families.defaults(128, DType.FP16, H200)[0])
    for run in (attention(tmp_path), attention(tmp_path, make_entry(4096, gpu="NVIDIA H100"))):
        found = run.chosen(WORKLOAD)
        assert not found.from_registry
        assert found.variant == default
        assert found.why.startswith("the default: the registry has nothing for")


def test_an_entry_of_another_version_is_passed_over(
    tmp_path: Path,
    built: list[Variant],
    make_entry: MakeEntry,  # noqa: F811
) -> None:
    unknown = Variant("sm80", "(FP16, 128, 64, 64, 4): knob_of_tomorrow")
    near = make_entry(8192)
    run = attention(tmp_path, make_entry(4096, chosen=unknown, confirmation=None), near)
    assert run.chosen(WORKLOAD).variant == near.chosen


def test_where_nothing_compiles_one_line_says_why(
    tmp_path: Path, built: list[Variant], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(requests: Any, *_: object, **__: object) -> list[Any]:
        return [SimpleNamespace(artifact=None, reason="ptxas died") for _ in requests]

    monkeypatch.setattr(chooser, "build", refuse)
    with pytest.raises(NoUsableVariant, match=r"no kernel runs .* on NVIDIA H200: ptxas died"):
        attention(tmp_path).chosen(WORKLOAD)


def test_tensors_on_the_cpu_are_refused_before_a_gpu_is_asked_for() -> None:
    q, k, v = (torch.zeros(1, 4, 2, 64, dtype=torch.float16) for _ in range(3))
    with pytest.raises(InvalidConfig, match="must be on a GPU; Q is on cpu"):
        fa_tune.runtime.attention(q, k, v)
