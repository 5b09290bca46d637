// Powers of two, one MUFU instruction each.
// PTX ISA: ex2.approx.ftz.f32.  Minimum: sm_50.
#pragma once

namespace fa_tune::ptx {

// 2^x; 2^(-inf) = 0, subnormal results are flushed to zero.
__device__ __forceinline__ float ex2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

}  // namespace fa_tune::ptx
