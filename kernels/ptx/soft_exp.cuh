// 2^x without the special function unit: a polynomial on what multiplies and adds.
// PTX ISA: max.NaN.f32.  Minimum: sm_80.
//
//     x = n + f, n = round(x), -1/2 <= f <= 1/2        2^x = 2^n (c0 + c1 f + c2 f^2 + c3 f^3)
//
// Adding 3 * 2^22 to x rounds it to an integer, which then stands in the sum's lowest bits.  The
// largest relative error of the polynomial is 7.5e-5, a seventh of what fp16 rounds by; its
// coefficients are equal-ripple ones of the relative error.
#pragma once

namespace ptx {

// 2^x for x < 127; below -125, -infinity included, 2^-125.  NaN stays NaN.
__device__ __forceinline__ float soft_exp2(float x) {
    float clamped;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(clamped) : "f"(x), "f"(-125.f));
    constexpr float kRound = 12582912.f;  // 3 * 2^22
    const float rounded = __fadd_rn(clamped, kRound);
    const float f = __fadd_rn(clamped, -__fadd_rn(rounded, -kRound));
    const float p = fmaf(fmaf(fmaf(0.055172f, f, 0.242611f), f, 0.693261f), f, 0.999928f);
    // A product, not a sum of bits, so that NaN stays what it is.
    return p * __uint_as_float((__float_as_uint(rounded) << 23) + (127u << 23));
}

}  // namespace ptx
