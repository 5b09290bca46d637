"""Kernels that do what none should: they take the parameters of ours, so that their cubin can
stand in for a variant's."""

import dataclasses
from pathlib import Path

from fa_tune import families
from fa_tune.build import nvrtc
from fa_tune.core.model import Artifact

SOURCE = """
#include "common/problem.cuh"
#include "sm80/fwd/config.cuh"
#include "sm80/fwd/params.cuh"

using namespace fa_tune;
using namespace fa_tune::sm80;

// Launches of one kernel since its module was loaded, counted by one thread.
__device__ int launches;

__device__ bool is_first_thread() {
    return threadIdx.x + blockIdx.x + blockIdx.y + blockIdx.z == 0;
}

__device__ void write_nowhere() { *reinterpret_cast<volatile int*>(0x10) = 1; }

__device__ void spin() {
    for (;;) __nanosleep(1000);
}

extern "C" __global__ void illegal_address(const __grid_constant__ ForwardParams params) {
    write_nowhere();
}

extern "C" __global__ void illegal_address_later(const __grid_constant__ ForwardParams params) {
    if (is_first_thread() && launches++ > 0) write_nowhere();
}

extern "C" __global__ void endless(const __grid_constant__ ForwardParams params) { spin(); }

extern "C" __global__ void endless_later(const __grid_constant__ ForwardParams params) {
    if (is_first_thread() && launches++ > 0) spin();
}

extern "C" __global__ void wrong_numbers(const __grid_constant__ ForwardParams params) {
    const int rows = (params.seq_len_q + gridDim.x - 1) / gridDim.x;
    const int first = blockIdx.x * rows;
    const int end = min(first + rows, params.seq_len_q);
    unsigned short* out =
        params.o + blockIdx.z * params.o_strides.batch + blockIdx.y * params.o_strides.head;
    for (int row = first; row < end; ++row) {
        for (int i = threadIdx.x; i < D_HEAD; i += blockDim.x) {
            out[row * params.o_strides.seq + i] = 0;
        }
    }
}
"""
# Ten thousand statements that all depend on one another: minutes for the compiler.
SLOW_TO_COMPILE = """
#define R1(x) x x x x x x x x x x
#define R2(x) R1(R1(x))
#define R4(x) R2(R2(x))
#define FA_TUNE_SLOW_TIMES(times, x) times(x)

extern "C" __global__ void slow_to_compile(float* p) {
    float a = p[0];
    int i = 0;
    FA_TUNE_SLOW_TIMES(R4, a = a * p[i] + __sinf(a); if (a > i) p[i++] = a;)
}
"""
NAMES = ("illegal_address", "illegal_address_later", "endless", "endless_later", "wrong_numbers")


def compile_faulty(folder: Path, arch: str, d_head: int) -> Path:
    """All of them in one cubin."""
    options = (f"--gpu-architecture={arch}", "-std=c++20", f"-DD_HEAD={d_head}")
    headers = families.get("sm80").source_files()
    compiled = nvrtc.compile_source(SOURCE, "faulty_kernels.cu", headers, options, ())
    path = folder / "faulty_kernels.cubin"
    path.write_bytes(compiled.image)
    return path


def disguised(artifact: Artifact, cubin: Path, name: str) -> Artifact:
    """A variant's artifact with another kernel in it."""
    return dataclasses.replace(artifact, cubin=str(cubin), symbol=name)
