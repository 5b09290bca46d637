"""NVRTC on a machine that needs no GPU."""

import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from fa_tune.build import nvrtc
from fa_tune.build.ptxas_log import diagnostics, kernel_facts
from fa_tune.core.errors import ToolMissing

SOURCE = """
#include "parts/scale.cuh"
template <int N>
__global__ void reverse(float* p) {
    __shared__ float s[N];
    s[threadIdx.x] = p[threadIdx.x];
    __syncthreads();
    p[threadIdx.x] = kScale * s[N - 1 - threadIdx.x];
}
"""
HEADERS = {"parts/scale.cuh": "constexpr float kScale = 2.0f;\n"}
OPTIONS = ("--gpu-architecture=sm_90", "--ptxas-options=-v", "-std=c++20")


@pytest.fixture
def fresh() -> Iterator[None]:
    """Forget what was loaded, before and after."""
    caches = (nvrtc._bindings, nvrtc.version, nvrtc.supported_archs)
    for function in caches:
        function.cache_clear()
    yield
    for function in caches:
        function.cache_clear()


def test_a_template_becomes_a_cubin_with_names_and_facts() -> None:
    names = ["reverse<32>", "reverse<64>"]
    compiled = nvrtc.compile_source(SOURCE, "reverse.cu", HEADERS, OPTIONS, names)
    assert compiled.image[:4] == b"\x7fELF"
    assert set(compiled.lowered) == set(names)
    for name, smem_bytes in zip(names, (128, 256), strict=True):
        assert compiled.lowered[name].encode() in compiled.image
        facts = kernel_facts(compiled.log, compiled.lowered[name])
        assert facts.static_smem_bytes == smem_bytes
        assert facts.barriers == 1
        assert 0 < facts.registers < 64
        assert facts.spill_store_bytes == facts.spill_load_bytes == facts.stack_bytes == 0
    assert diagnostics(compiled.log) == ()
    assert compiled.compile_s > 0


def test_a_virtual_architecture_gives_text() -> None:
    options = ("--gpu-architecture=compute_80",)
    compiled = nvrtc.compile_source(SOURCE, "reverse.cu", HEADERS, options, ["reverse<32>"])
    assert compiled.image.endswith(b"\0")
    assert f".entry {compiled.lowered['reverse<32>']}(".encode() in compiled.image


def test_spills_are_stated() -> None:
    source = """
__global__ void __launch_bounds__(1024, 2) crowded(float* p) {
    float a[80];
    #pragma unroll
    for (int i = 0; i < 80; i++) a[i] = p[i * threadIdx.x];
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < 80; i++) p[i] = a[i] * a[79 - i];
}
"""
    compiled = nvrtc.compile_source(source, "crowded.cu", {}, OPTIONS, ["crowded"])
    facts = kernel_facts(compiled.log, compiled.lowered["crowded"])
    assert facts.registers <= 32
    assert facts.spill_store_bytes > 0
    assert facts.spill_load_bytes > 0
    assert facts.stack_bytes > 0


def test_notices_of_ptxas_reach_the_diagnostics() -> None:
    source = """
__global__ void k(float* p) {
    int unused;
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    *p = 1;
}
"""
    options = ("--gpu-architecture=sm_90a", "--ptxas-options=-v")
    found = diagnostics(nvrtc.compile_source(source, "notice.cu", {}, options, ["k"]).log)
    assert any("notice.cu(3): warning" in line and '"unused"' in line for line in found)
    assert any("C7508" in line for line in found)


@pytest.mark.parametrize(
    ("source", "options", "expression", "reason"),
    [
        (
            'template <int N> __global__ void k() { static_assert(N == 2, "N must be 2"); }',
            OPTIONS,
            "k<3>",
            r"^N must be 2$",
        ),
        ("__global__ void k() { nonsense; }", OPTIONS, "k", r"^x\.cu\(1\): error: .*nonsense"),
        ('#include "gone.cuh"', OPTIONS, "k", r"cannot open source file \"gone\.cuh\""),
        ("__global__ void k() {}", OPTIONS, "missing<2>", r"\"missing\" is undefined"),
        ("__global__ void k() {}", ("--bogus",), "k", r"unrecognized option --bogus"),
        (
            "template <int N> __global__ void k(int* p) {"
            " __shared__ int s[N]; s[*p] = 1; *p = s[p[1]]; }",
            OPTIONS,
            "k<100000>",
            r"uses too much shared data",
        ),
    ],
)
def test_a_refusal_has_a_one_line_reason(
    source: str, options: tuple[str, ...], expression: str, reason: str
) -> None:
    with pytest.raises(nvrtc.CompileError, match=reason) as caught:
        nvrtc.compile_source(source, "x.cu", {}, options, [expression])
    assert "\n" not in str(caught.value)
    assert str(caught.value) in " ".join(caught.value.log.split())


def test_the_architectures_of_the_sm80_family_are_known() -> None:
    assert {"sm_80", "sm_86", "sm_89", "sm_90"} <= set(nvrtc.supported_archs())
    nvrtc.require_arch("sm_90a")
    with pytest.raises(ToolMissing, match=r"^NVRTC [\d.]+ cannot compile for sm_20; it knows sm_"):
        nvrtc.require_arch("sm_20")


def test_no_driver_is_loaded() -> None:
    code = """
from fa_tune.build import nvrtc
nvrtc.compile_source("__global__ void k() {}", "k.cu", {}, ["-arch=sm_80"], ["k"])
print(nvrtc.version(), nvrtc.supported_archs())
assert "libcuda.so" not in open("/proc/self/maps").read()
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("error", [RuntimeError, OSError])
def test_a_missing_library_is_one_line(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def absent() -> None:
        raise error("Failed to dlopen libnvrtc.so.13\nsearched here\nand there")

    module = SimpleNamespace(nvrtcVersion=absent)
    monkeypatch.setitem(sys.modules, "cuda.bindings", SimpleNamespace(nvrtc=module))
    with pytest.raises(ToolMissing, match=r"libnvrtc\.so\.13\).*pip install") as e:
        nvrtc.supported_archs()
    assert "\n" not in str(e.value)


@pytest.mark.usefixtures("fresh")
def test_a_failure_of_nvrtc_itself_is_no_fault_of_the_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = nvrtc._bindings()
    memory = real.nvrtcResult.NVRTC_ERROR_OUT_OF_MEMORY
    monkeypatch.setattr(real, "nvrtcCompileProgram", lambda *_: (memory,))
    with pytest.raises(ToolMissing, match="NVRTC_ERROR_OUT_OF_MEMORY"):
        nvrtc.compile_source(SOURCE, "x.cu", HEADERS, OPTIONS, ["reverse<32>"])


def test_the_library_is_found_in_a_folder_that_only_the_path_names() -> None:
    """As when a .pth file or PYTHONPATH adds another environment's packages."""
    folders = [folder for folder in sys.path if folder]
    code = (
        f"import sys; sys.path[:0] = {folders!r}\n"
        "from fa_tune.build import nvrtc; print(nvrtc.version())"
    )
    # Without `site` the interpreter has no package folders of its own.
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == nvrtc.version()
