// Keeping exponentials ahead of what follows them in the program.
// PTX ISA: setp, st.volatile.shared.  Minimum: sm_50.
#pragma once

namespace ptx {

// A store that never happens, since sums of exponentials are not negative.  The compiler cannot
// know that, so that whatever `sum` depends on is computed before this point.
__device__ __forceinline__ void pin_before_here(float sum, unsigned scratch) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.lt.f32 p, %0, 0f00000000;\n"
        "@p st.volatile.shared.f32 [%1], %0;\n"
        "}" ::"f"(sum),
        "r"(scratch)
        : "memory");
}

}  // namespace ptx
