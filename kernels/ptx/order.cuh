// Letting one computation begin after another, on which it does not depend.
// PTX ISA: min.f32, max.f32.  Minimum: sm_50.
#pragma once

namespace ptx {

// x, computed from `earlier` as far as the assembler knows.
__device__ __forceinline__ float fmax_after(float x, float earlier) {
    float y;
    asm("{\n"
        ".reg .f32 lowest;\n"
        "min.f32 lowest, %2, 0fFF800000;\n"
        "max.f32 %0, %1, lowest;\n"
        "}"
        : "=f"(y)
        : "f"(x), "f"(earlier));
    return y;
}

}  // namespace ptx
