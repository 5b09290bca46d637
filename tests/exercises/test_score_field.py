"""A field of the workload that changes scores, in every layer from its key to the kernels."""

from pathlib import Path

import pytest

from tests.exercises.overlay import SOURCES, changed, quick_compiler, run
from tests.kernels.emulated.emulation import compiler

pytest.importorskip("torch", reason="torch is not installed: nobody computes anything")

EDITS = {
    "fa_tune/core/workload.py": [
        (
            "    d_head_v: int = _field(",
            "    tilt: float | None = _field(\n"
            '        default=None, key="tilt", label="tilt {:g}",\n'
            '        help="Add N j to the scores of key j.", examples=(0.02, -0.1), special=True,\n'
            "    )\n    d_head_v: int = _field(",
        )
    ],
    "fa_tune/operations/traits.py": [
        ("    packed: bool = False\n", "    packed: bool = False\n    tilt: bool = False\n")
    ],
    "fa_tune/operations/forward/torch_side/scores.py": [
        (
            "    if slopes is not None:\n",
            "    if workload.tilt is not None:\n"
            "        keys = torch.arange(workload.seq_len_kv, device=scores.device)\n"
            "        scores = scores + workload.tilt * keys.to(scores.dtype)\n"
            "    if slopes is not None:\n",
        )
    ],
    "fa_tune/families/plan.py": [
        (
            "    packed: int = planned(",
            '    tilt: int = planned("1: compiled with a tilt")\n    packed: int = planned(',
        )
    ],
    "fa_tune/build/native/abi.py": [
        (
            '        ("d_head_v", c_int32, ',
            '        ("tilt", c_double, "times a key\'s number, added to its scores"),\n'
            '        ("d_head_v", c_int32, ',
        )
    ],
    "csrc/core/problem.cpp": [
        (
            "plan.hook == problem.score_hook;",
            "plan.hook == problem.score_hook && (plan.tilt != 0) == (problem.tilt != 0);",
        ),
        (
            '    if (p.alibi != 0) key += "_alibi";',
            '    if (p.alibi != 0) key += "_alibi";\n    if (p.tilt != 0) key += "_tilt";',
        ),
    ],
    "csrc/core/params/forward.h": [
        (
            "    score.first_diagonal = first_diagonal_of(problem);",
            "    score.first_diagonal = first_diagonal_of(problem);\n"
            "    score.tilt = static_cast<float>(problem.tilt / scale);",
        )
    ],
    "csrc/core/table.cpp": [
        ("using Details = std::array<bool, 8>;", "using Details = std::array<bool, 9>;"),
        (
            "            a.cached != b.cached};",
            "            a.cached != b.cached, a.tilt != b.tilt};",
        ),
    ],
    "kernels/common/problem.cuh": [
        ("    // Whether a row may see", "    bool tilt;\n\n    // Whether a row may see"),
        ("return softcap || alibi || hook;", "return softcap || alibi || hook || tilt;"),
    ],
    "kernels/common/score_params.cuh": [
        ("    float score_scale;", "    float tilt;  // over softmax_scale\n    float score_scale;")
    ],
    "kernels/common/scores.cuh": [
        (
            "        if constexpr (TRAITS.alibi) {\n#pragma unroll\n",
            "        if constexpr (TRAITS.tilt) {\n"
            "            for (int n = 0; n < kFragments; ++n) {\n"
            "                for (int i = 0; i < 4; ++i)\n"
            "                    s[n][i] += p.score.tilt * (column + 8 * n + i % 2);\n"
            "            }\n        }\n        if constexpr (TRAITS.alibi) {\n#pragma unroll\n",
        )
    ],
}
SCRIPT = """
import dataclasses
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from click.testing import CliRunner

from fa_tune import operations
from fa_tune.cli import main
from fa_tune.core.workload import DType, Workload
from fa_tune.export.config_headers import write_generated_files
from fa_tune.operations.traits import Traits

write_generated_files(Path())

from fa_tune.build.native.core import Core
from fa_tune.build.native.library import core_library
from tests.kernels.emulated import emulation
from tests.kernels.emulated.problems import LAYOUTS, Problem
from tests.kernels.emulated.trials import by_criterion, inputs_of

with ThreadPoolExecutor() as pool:  # both take seconds
    pool.submit(emulation._machine, Path("libraries"))
    core = Core(core_library(Path("cache")))
emulation.core = lambda: core
w = Workload(1, 2, 1, 37, 53, 64, DType.FP16, tilt=0.02)
assert Workload.from_key(w.key) == w and "tilt0.02" in w.key
cases = operations.cases_like(w, "ragged+tilt", thorough=False)
assert {one.workload.tilt for one in cases} == {0.02, -0.1}
form = "(FP16, 64, 64, 32, 4): async+eager+swizzled+load_2_2_2_tiles+stages_2"
kernel = emulation.build_changed(form, "ragged+tilt", Path("libraries"))
problem = Problem.draw(w, LAYOUTS[0], 1)
out, lse = kernel.launch(problem, next(emulation.schedules(0)))
assert not by_criterion(w, inputs_of(problem, w), out.inside, lse).faults
plain = dataclasses.replace(w, tilt=None)
assert by_criterion(plain, inputs_of(problem, plain), out.inside, lse).faults
done = CliRunner().invoke(main, ["search", "--tilt", "0.02", "--help"])
assert "--tilt" in done.output
print("right")
"""


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler that knows C++20 and fp16")
def test_a_field_that_changes_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", quick_compiler(tmp_path, compiler()))
    copied = (*SOURCES, "tests/described.py", "tests/tensors.py", "tests/gpu", "tests/kernels")
    assert run(tmp_path, SCRIPT, edits=EDITS, copied=copied) == "right\n"
    files = changed(tmp_path)
    assert set(EDITS) < files
    assert len(files) <= 12, files
