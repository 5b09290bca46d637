// Two fp32 values rounded to nearest even and packed into one register.
// PTX ISA: cvt.rn.f16x2.f32, cvt.rn.bf16x2.f32 (the first source goes to the upper half).
// Minimum: sm_80.
#pragma once

namespace fa_tune::ptx {

__device__ __forceinline__ unsigned cvt_rn_f16x2_f32(float lower, float upper) {
    unsigned packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(upper), "f"(lower));
    return packed;
}

__device__ __forceinline__ unsigned cvt_rn_bf16x2_f32(float lower, float upper) {
    unsigned packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(upper), "f"(lower));
    return packed;
}

}  // namespace fa_tune::ptx
