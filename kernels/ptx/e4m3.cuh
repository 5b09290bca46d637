// Numbers of one byte, e4m3, as what a multiply-accumulate takes: exact.
// PTX ISA: cvt.rn.f16x2.e4m3x2.  Minimum: sm_89.
#pragma once

namespace fa_tune::ptx {

// The four numbers of a word, in their order, as two words of two.
__device__ __forceinline__ void cvt_f16x2_e4m3(unsigned (&halves)[2], unsigned numbers) {
    asm("{\n"
        ".reg .b16 lower, upper;\n"
        "mov.b32 {lower, upper}, %2;\n"
        "cvt.rn.f16x2.e4m3x2 %0, lower;\n"
        "cvt.rn.f16x2.e4m3x2 %1, upper;\n"
        "}"
        : "=r"(halves[0]), "=r"(halves[1])
        : "r"(numbers));
}

// Both numbers of a word.
__device__ __forceinline__ void cvt_f32_f16x2(float& lower, float& upper, unsigned halves) {
    asm("{\n"
        ".reg .b16 lower, upper;\n"
        "mov.b32 {lower, upper}, %2;\n"
        "cvt.f32.f16 %0, lower;\n"
        "cvt.f32.f16 %1, upper;\n"
        "}"
        : "=f"(lower), "=f"(upper)
        : "r"(halves));
}

// Bytes 0, 2, 1, 3 of a word.
__device__ __forceinline__ unsigned prmt_0213(unsigned word) {
    unsigned permuted;
    asm("prmt.b32 %0, %1, 0, 0x3120;" : "=r"(permuted) : "r"(word));
    return permuted;
}

}  // namespace fa_tune::ptx
