// What the compiler may not do: barriers for the optimiser, of no work of their own.
#pragma once

namespace fa_tune {

// The compiler must not move the value out of its register across this point.
__device__ __forceinline__ void keep_register(float& value) {
    asm volatile("" : "+f"(value)::"memory");
}
__device__ __forceinline__ void keep_register(unsigned& value) {
    asm volatile("" : "+r"(value)::"memory");
}

template <class T, int kCount>
__device__ __forceinline__ void keep_registers(T (&values)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) keep_register(values[i]);
}

// A store that hardly ever happens: that exponentials are not negative the compiler knows, but not
// that a sum of them beyond 2^127 is rare.  Whatever `sum` depends on is computed before this
// point.  Nobody reads `scratch`.
__device__ __forceinline__ void force_exponentials_before_here(float sum, unsigned scratch) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.gt.f32 p, %0, 0f7F000000;\n"
        "@p st.volatile.shared.f32 [%1], %0;\n"
        "}" ::"f"(sum),
        "r"(scratch)
        : "memory");
}

// Stores that never happen, since sums of exponentials are not negative.  The compiler cannot
// know that, so that whatever `sum` and four fragments depend on is computed before this point.
__device__ __forceinline__ void force_before_here(float sum, const unsigned (&a)[4],
                                                  const unsigned (&b)[4], const unsigned (&c)[4],
                                                  const unsigned (&d)[4], unsigned scratch) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.lt.f32 p, %0, 0f00000000;\n"
        "@p st.volatile.shared.v4.b32 [%1], {%2, %3, %4, %5};\n"
        "@p st.volatile.shared.v4.b32 [%1], {%6, %7, %8, %9};\n"
        "@p st.volatile.shared.v4.b32 [%1], {%10, %11, %12, %13};\n"
        "@p st.volatile.shared.v4.b32 [%1], {%14, %15, %16, %17};\n"
        "}" ::"f"(sum),
        "r"(scratch), "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]),
        "r"(b[3]), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]), "r"(d[0]), "r"(d[1]), "r"(d[2]),
        "r"(d[3])
        : "memory");
}

}  // namespace fa_tune
