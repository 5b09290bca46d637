"""Facts, diagnostics and reasons from recorded compiler logs."""

import dataclasses

import pytest

from fa_tune.build.ptxas_log import KernelFacts, diagnostics, first_error, kernel_facts
from fa_tune.core import codec
from fa_tune.core.errors import ToolMissing

# NVRTC 13.0: a kernel that calls a function that was not inlined, one that spills, and one
# that uses neither barriers nor shared memory.
LOG_13 = """\
ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored; unable to determine \
register count at entry.
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z1kILi32EEvPf' for 'sm_90a'
ptxas info    : Function properties for _Z1kILi32EEvPf
ptxas         .     256 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 256 bytes cumulative stack size, 128 bytes smem
ptxas info    : Compile time = 16.143 ms
ptxas info    : Function properties for _Z1hf
ptxas         .     0 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Compiling entry function '_Z2k4Pf' for 'sm_90a'
ptxas info    : Function properties for _Z2k4Pf
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers
ptxas info    : Compile time = 2.308 ms
ptxas info    : Compiling entry function '_Z2k2Pf' for 'sm_90a'
ptxas info    : Function properties for _Z2k2Pf
ptxas         .     136 bytes stack frame, 168 bytes spill stores, 172 bytes spill loads
ptxas info    : Used 255 registers, used 16 barriers, 136 bytes cumulative stack size
ptxas info    : Compile time = 32.505 ms
"""

# The older form: no `ptxas .`, constant memory listed, barriers not.
LOG_OLD = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z1kPf' for 'sm_80'
ptxas info    : Function properties for _Z1kPf
    8 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 40 registers, 1024 bytes smem, 360 bytes cmem[0]
"""

WARNINGS = """\
kernel.cu(5): warning #1444-D: function "f" was declared deprecated ("old")
  __device__ int g(){ return f(); } // warning: this is quoted source
                             ^
kernel.cu(4): note #3287-D: because of a "deprecated" attribute
  [[deprecated("old")]] __device__ int f(){return 1;}
    ^

Remark: The warnings can be suppressed with "-diag-suppress <warning-number>"

kernel.cu(5): warning #1444-D: function "f" was declared deprecated ("old")
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized
ptxas warning : Value of threads per SM for entry k is out of range.
"""

ASSERTION = """\
kernel.cu(1): error: identifier "zz" is undefined
  s[N]=zz;
       ^

kernel.cu(3): error: static assertion failed with "N must be 2, the only even prime"
          detected during instantiation of "void k<N>(float *) [with N=32]"

2 errors detected in the compilation of "kernel.cu".
"""


@pytest.mark.parametrize(
    ("log", "symbol", "facts"),
    [
        (LOG_13, "_Z1kILi32EEvPf", KernelFacts(32, 0, 0, 256, 128, 1)),
        (LOG_13, "_Z2k4Pf", KernelFacts(8, 0, 0, 0, 0, 0)),
        (LOG_13, "_Z2k2Pf", KernelFacts(255, 168, 172, 136, 0, 16)),
        (LOG_OLD, "_Z1kPf", KernelFacts(40, 12, 16, 8, 1024, 0)),
    ],
)
def test_facts_belong_to_their_own_kernel(log: str, symbol: str, facts: KernelFacts) -> None:
    assert kernel_facts(log, symbol) == facts


@pytest.mark.parametrize(
    "log",
    [
        "",
        LOG_13.replace("Used 32 registers", "Used a few registers"),
        LOG_13.replace("256 bytes stack frame, 0 bytes spill stores", "no spills"),
        LOG_13.replace("_Z1kILi32EEvPf", "_Z5other"),
    ],
)
def test_a_missing_fact_is_an_error_and_no_zero(log: str) -> None:
    with pytest.raises(ToolMissing, match="does not state the registers and spills of _Z1kILi32"):
        kernel_facts(log, "_Z1kILi32EEvPf")


def test_diagnostics_are_single_lines_without_source_notes_or_repeats() -> None:
    assert diagnostics(WARNINGS) == (
        'kernel.cu(5): warning #1444-D: function "f" was declared deprecated ("old")',
        "ptxas: (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized",
        "ptxas warning : Value of threads per SM for entry k is out of range.",
    )


def test_facts_are_no_diagnostics() -> None:
    assert diagnostics(LOG_OLD) == ()
    assert [d[:14] for d in diagnostics(LOG_13)] == ["ptxas: (C7508)"]


def test_a_static_assertion_explains_a_failure_best() -> None:
    assert first_error(ASSERTION) == "N must be 2, the only even prime"


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (
            "ptxas error   : Entry function 'k' uses too much shared data (0x61a80 bytes)\n",
            "ptxas error : Entry function 'k' uses too much shared data (0x61a80 bytes)",
        ),
        (f"{WARNINGS}kernel.cu(9): error: expected a ;\n", "kernel.cu(9): error: expected a ;"),
        ("something else\n", "something else"),
        ("", ""),
    ],
)
def test_the_first_error_is_the_reason(log: str, reason: str) -> None:
    assert first_error(log) == reason


@pytest.mark.parametrize(
    "change", [{"registers": -1}, {"registers": "32"}, {"registers": True}, {"colour": 1}]
)
def test_facts_that_are_no_counts_are_refused(change: dict[str, object]) -> None:
    value: dict[str, object] = dataclasses.asdict(KernelFacts(1, 2, 3, 4, 5, 6))
    with pytest.raises(ValueError, match=r"registers|colour|count"):
        codec.load(KernelFacts, value | change)
