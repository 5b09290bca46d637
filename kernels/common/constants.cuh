// Numbers of softmax to base 2, and what the four lanes of a quad know together.
//
// In the accumulators of mma.sync and wgmma a row lies in a quad: lanes 4q to 4q + 3.
#pragma once

namespace fa_tune {

constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;
// An exponent c s - m is one fused multiply-add of a rounded m.  From this m on half a unit of its
// last place, 2^-12 or more, shows in a P of 1.
constexpr float kLargeMax = 4096.f;
constexpr unsigned kAllLanes = 0xffffffffu;

__device__ __forceinline__ float negative_infinity() { return __int_as_float(0xff800000); }

__device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
    return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
}

__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(kAllLanes, x, 1);
    return x + __shfl_xor_sync(kAllLanes, x, 2);
}

}  // namespace fa_tune
