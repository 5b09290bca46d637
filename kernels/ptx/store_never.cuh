// Stores that never happen, which the compiler does not know: what they would store is computed
// before them.
// PTX ISA: st.volatile.shared with a predicate.  Minimum: sm_70.
#pragma once

namespace fa_tune::ptx {

// `never` is no number that this is: 2^31 - 1.  Nobody reads `scratch`.
__device__ __forceinline__ void compute_16_before_here(const float* v, int never,
                                                       unsigned scratch) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.eq.s32 p, %0, 0x7fffffff;\n"
        "@p st.volatile.shared.v4.f32 [%1], {%2, %3, %4, %5};\n"
        "@p st.volatile.shared.v4.f32 [%1], {%6, %7, %8, %9};\n"
        "@p st.volatile.shared.v4.f32 [%1], {%10, %11, %12, %13};\n"
        "@p st.volatile.shared.v4.f32 [%1], {%14, %15, %16, %17};\n"
        "}" ::"r"(never),
        "r"(scratch), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "f"(v[4]), "f"(v[5]), "f"(v[6]),
        "f"(v[7]), "f"(v[8]), "f"(v[9]), "f"(v[10]), "f"(v[11]), "f"(v[12]), "f"(v[13]), "f"(v[14]),
        "f"(v[15])
        : "memory");
}

}  // namespace fa_tune::ptx
