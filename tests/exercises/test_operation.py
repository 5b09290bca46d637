"""A backward pass with a field of its own, its kernels, verification and place in autograd."""

from pathlib import Path

import pytest

from tests.exercises.overlay import SOURCES, changed, quick_compiler, run
from tests.kernels.emulated.emulation import compiler

pytest.importorskip("torch", reason="torch is not installed: nobody computes anything")

ADDED = Path(__file__).parent / "backward"  # as in a checkout
CHECK = "check.py"
FIELD = """        allowed=(FORWARD, BACKWARD),
    )
"""
EDITS = {
    "fa_tune/core/workload.py": [
        (
            FIELD,
            f"{FIELD}    wide_sums: bool = _field(\n"
            '        effect=Effect.KIND, default=False, key="wide", label="fp32", short="fp32"\n'
            "    )\n",
        )
    ],
    "fa_tune/families/__init__.py": [
        (
            "Sm80BackwardFamily(), Sm90BackwardFamily()),",
            "Sm80BackwardFamily(), Sm90BackwardFamily(), ToyFamily()),",
        ),
        (
            "from fa_tune.operations.base",
            "from fa_tune.families.toy.family import ToyFamily\nfrom fa_tune.operations.base",
        ),
    ],
    "fa_tune/families/plan.py": [("    BACKWARD = 1\n", "    BACKWARD = 1\n    TOY = 2\n")],
    "fa_tune/build/native/abi.py": [
        (
            'is exactly 1; 0: any"),\n    )\n\n\nclass Tensor(',
            'is exactly 1; 0: any"),\n        ("wide_sums", c_int32, "1: gradients are fp32"),\n'
            '        ("unused", c_int32, "0"),\n    )\n\n\nclass Tensor(',
        )
    ],
    "fa_tune/op/backward.py": [
        ("import flash2, products\n", "import flash2, products, toy_backward\n"),
        (
            "    kernel = _cudnn if",
            "    own = toy_backward.gradients if toy_backward.suits(done, mask) else None\n"
            "    kernel = own or _cudnn if own or",
        ),
    ],
    "csrc/core/operands.cpp": [
        (
            "struct Operation {\n",
            "constexpr Needed kToy[] = {\n"
            '    {FA_TUNE_TENSOR_Q, "Q", Form::kQueries, always},\n'
            '    {FA_TUNE_TENSOR_K, "K", Form::kKeys, always},\n'
            '    {FA_TUNE_TENSOR_V, "V", Form::kKeys, always},\n'
            '    {FA_TUNE_TENSOR_DO, "dO", Form::kQueries, always},\n'
            '    {FA_TUNE_TENSOR_DQ, "dQ", Form::kQueries, always},\n'
            '    {FA_TUNE_TENSOR_DK, "dK", Form::kKeys, always},\n'
            '    {FA_TUNE_TENSOR_DV, "dV", Form::kKeys, always},\n'
            "};\n\nstruct Operation {\n",
        ),
        (
            "std::end(kForward)},\n",
            "std::end(kForward)},\n"
            '    {FA_TUNE_OPERATION_TOY, "toy_", std::begin(kToy),\n'
            "     std::end(kToy)},\n",
        ),
    ],
    "csrc/core/problem.cpp": [
        (
            'std::pair{"alibi", problem.alibi},',
            'std::pair{"alibi", problem.alibi},\n'
            '          std::pair{"wide_sums", problem.wide_sums},',
        ),
        (
            "    const bool of_keys =",
            '    static constexpr ElementType kSum{6, "fp32", 4, 7};\n'
            "    if (problem.wide_sums != 0 && role >= FA_TUNE_TENSOR_DQ) return kSum;\n"
            "    const bool of_keys =",
        ),
        (
            '    if (p.kv_e4m3 != 0) key += "_e4m3";\n',
            '    if (p.kv_e4m3 != 0) key += "_e4m3";\n    if (p.wide_sums != 0) key += "_wide";\n',
        ),
    ],
}
# The core takes seconds to compile.  The operators in C++ would take many.
AHEAD = """
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fa_tune.build.native.library import core_library
from fa_tune.export.config_headers import write_generated_files

write_generated_files(Path())
ThreadPoolExecutor().submit(core_library, Path("cache"))

import torch

torch.version.cuda = None
"""


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler that knows C++20 and fp16")
def test_an_operation_with_kernels_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", quick_compiler(tmp_path, compiler()))
    new = {
        str(file.relative_to(ADDED)): file.read_text(encoding="utf-8")
        for file in ADDED.rglob("*")
        if file.suffix in (".py", ".cu", ".cuh", ".cpp")
    }
    check = new.pop(CHECK)
    run(tmp_path, AHEAD + check, new=new, edits=EDITS, copied=(*SOURCES, "tests/described.py"))
    files = changed(tmp_path)
    assert set(EDITS) < files
    assert len(files) <= 8, files
