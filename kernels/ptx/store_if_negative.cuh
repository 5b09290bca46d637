// A store to shared memory that happens only for a negative value.
// PTX ISA: setp, st.volatile.shared.  Minimum: sm_50.
//
// For a value that never is negative, it is a use that the assembler can neither drop nor move
// behind a barrier: all that the value is made of is done before it.
#pragma once

namespace ptx {

__device__ __forceinline__ void store_if_negative(unsigned address, float value) {
    asm volatile(
        "{\n"
        ".reg .pred negative;\n"
        "setp.lt.f32 negative, %1, 0f00000000;\n"
        "@negative st.volatile.shared.f32 [%0], %1;\n"
        "}" ::"r"(address),
        "f"(value)
        : "memory");
}

}  // namespace ptx
