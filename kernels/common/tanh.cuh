// tanh and the logistic function from an exponential and a reciprocal: within 2^-21 everywhere,
// where tanh.approx is within 2^-11.
#pragma once

#include "ptx/ex2.cuh"
#include "ptx/min_nan.cuh"

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

// Each x becomes 1 / (1 + 2^(factor x)).  Four reciprocals are one and nine products, since
// exponentials take the same unit.  Beyond 2^kMost a quotient is as good as 0, and the product of
// four is a number.  A NaN is that of all four.
__device__ __forceinline__ void one_over_one_and_power(float (&x)[4], float factor) {
    constexpr float kMost = 30.f;
    const auto one_and_power = [factor](float x) {
        return 1.f + ptx::ex2_approx(ptx::min_nan(x * factor, kMost));
    };
    const float a0 = one_and_power(x[0]), a1 = one_and_power(x[1]);
    const float a2 = one_and_power(x[2]), a3 = one_and_power(x[3]);
    const float a01 = a0 * a1, a23 = a2 * a3;
    const float inverse = 1.f / (a01 * a23);
    const float inverse01 = inverse * a23, inverse23 = inverse * a01;
    x[0] = inverse01 * a1;
    x[1] = inverse01 * a0;
    x[2] = inverse23 * a3;
    x[3] = inverse23 * a2;
}

// Each x becomes 1 / (1 + e^(-factor x)); cap tanh(x / cap) = 2 cap logistic(2 x / cap) - cap.
__device__ __forceinline__ void logistic(float (&x)[4], float factor) {
    constexpr float kMinusLog2E = -1.4426950408889634f;
    one_over_one_and_power(x, kMinusLog2E * factor);
}

}  // namespace fa_tune
