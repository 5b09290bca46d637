// tanh from an exponential and a reciprocal: within 2^-21 everywhere, where tanh.approx is within
// 2^-11.  For score hooks; the soft cap of common/scores.cuh needs less than that.
#pragma once

#include "ptx/ex2.cuh"

namespace fa_tune {

__device__ __forceinline__ float tanh(float x) {
    constexpr float kMinusTwoLog2E = -2.8853900817779268f;
    return 2.f / (1.f + ptx::ex2_approx(kMinusTwoLog2E * x)) - 1.f;
}

// cap tanh(score / cap)
__device__ __forceinline__ float softcap(float score, float cap) {
    constexpr float kMinusTwoLog2E = -2.8853900817779268f;
    return fmaf(2.f * cap, 1.f / (1.f + ptx::ex2_approx(kMinusTwoLog2E / cap * score)), -cap);
}

}  // namespace fa_tune
