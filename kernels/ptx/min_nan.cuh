// The smaller of two numbers; NaN if one is.
#pragma once

namespace fa_tune::ptx {

__device__ __forceinline__ float min_nan(float a, float b) {
    float smaller;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(smaller) : "f"(a), "f"(b));
    return smaller;
}

}  // namespace fa_tune::ptx
