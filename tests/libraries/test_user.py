"""Users' kernels: where they are, what they must give, and that wrong ones are told in one line."""

import re
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from fa_tune import libraries
from fa_tune.build import nvrtc
from fa_tune.core.errors import FaTuneError, InvalidConfig, StorageError
from fa_tune.core.workload import Workload
from fa_tune.libraries import user
from fa_tune.operations.base import CheckCase, Problem

pytest.importorskip("torch", reason="torch is not installed: nobody computes anything")

import torch

from fa_tune.operations.forward.torch_side import expected, inputs
from fa_tune.operations.torch_side import judge, outputs_of, results_of
from tests.project_files import ROOT

EXAMPLE = "examples/torch_attention.py:attention"
CUDA = "examples/row_attention.cu:rows"
PLAIN = Workload.from_key("b2_h6_kv2_q37_k53_d32_fp16_causal")


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def problem(workload: Workload = PLAIN) -> Problem:
    given = inputs(workload, seed=1, device="cpu")
    return Problem(workload, given, outputs_of(workload, fill=float("nan"), device="cpu"))


def bound(place: str, one: Problem) -> Any:
    return user.locate(place).bind(one)


@pytest.mark.parametrize("place", [EXAMPLE, "examples.torch_attention:attention"])
def test_a_function_is_judged_as_our_kernels_are(place: str) -> None:
    one = problem()
    judged = expected(one.workload, one.inputs)
    right = results_of(one, bound(place, one))
    assert judge(CheckCase(PLAIN), judged, right).ok
    wrong = {"o": right["o"] * 1.1}
    assert not judge(CheckCase(PLAIN), judged, results_of(one, lambda: wrong)).ok
    assert not judge(CheckCase(PLAIN), judged, results_of(one, lambda: None)).ok, "nothing written"


def test_a_workload_without_a_call_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="no softcap here"):
        bound(EXAMPLE, problem(Workload.from_key(f"{PLAIN.key}_softcap2.0")))


@pytest.mark.parametrize(
    "given",
    [
        {"o": torch.zeros(2, 37, 6, 16, dtype=torch.float16)},
        {"o": torch.zeros(2, 37, 6, 32)},
        {"out": torch.zeros(2, 37, 6, 32, dtype=torch.float16)},
        torch.zeros(2, 37, 6, 32, dtype=torch.float16),
    ],
)
def test_a_result_of_another_shape_type_or_name_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$"):
        results_of(problem(), lambda: given)


@pytest.mark.parametrize(
    ("place", "error"),
    [
        *((place, InvalidConfig) for place in ("mine", "no_such_module:f", "examples.nothing:f")),
        *((place, InvalidConfig) for place in (f"{EXAMPLE}_2", f"{CUDA}_2")),
        *((f"{file}:f", StorageError) for file in ("no_such.py", "no_such.cu")),
        ("examples/llama.cu:main", StorageError),
    ],
)
def test_what_is_not_there_is_told_before_anything_is_run(
    place: str, error: type[FaTuneError]
) -> None:
    with pytest.raises(error, match=rf"^{re.escape(place)}: [^\n]+$"):
        libraries.require([f"user:{place}"])


def test_what_is_no_function_or_gives_no_launch_is_told(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("number = 1\ndef nothing(problem): pass\n")
    with pytest.raises(ImportError, match="no function number"):
        bound(f"{file}:number", problem())
    with pytest.raises(TypeError, match="gave NoneType"):
        bound(f"{file}:nothing", problem())


def test_a_file_is_known_by_its_hash(tmp_path: Path) -> None:
    kernel, launcher = tmp_path / "mine.cu", tmp_path / "mine.py"
    kernel.write_text("mine")
    launcher.write_text("")
    seen = {libraries.installed(f"user:{kernel}:mine")}
    for file in (kernel, launcher):
        file.write_text(file.read_text() + " mine")
        seen.add(libraries.installed(f"user:{kernel}:mine"))
    assert len(seen) == 3


def test_a_package_offers_runners_by_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    offered = EntryPoint("torchs", "examples.torch_attention:attention", user.GROUP)
    monkeypatch.setattr(user, "entry_points", lambda *, group: [offered])
    monkeypatch.syspath_prepend(ROOT)
    one = problem()
    assert results_of(one, bound("torchs", one))["o"].isfinite().all()
    with pytest.raises(InvalidConfig, match="torchs"):
        user.locate("others")


def test_the_cuda_example_compiles() -> None:
    """With NVRTC as CuPy has it, which knows no C++ library; the header has what is used of it."""
    half = """
        #pragma once
        struct __half { unsigned short bits; };
        __device__ float __half2float(__half);
        __device__ __half __float2half(float);
    """
    source = (ROOT / CUDA.partition(":")[0]).read_text(encoding="utf-8")
    options = ("--gpu-architecture=compute_90", "-std=c++20")
    ptx = nvrtc.compile_source(source, "user.cu", {"cuda_fp16.h": half}, options, ())
    assert b".entry rows(" in ptx.image
