// Logarithms to base 2, one MUFU instruction each.
// PTX ISA: lg2.approx.ftz.f32.  Minimum: sm_50.
#pragma once

namespace fa_tune::ptx {

// log2(x).
__device__ __forceinline__ float lg2_approx(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

}  // namespace fa_tune::ptx
