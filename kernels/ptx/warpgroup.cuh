// What a warpgroup (four consecutive warps) asks of the hardware and of the assembler.
// PTX ISA: setmaxnreg.  Minimum: sm_90a.
#pragma once

namespace ptx {

// Give registers back, down to kRegisters per thread.  The whole warpgroup executes it.
template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_dec() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Take registers, up to kRegisters per thread; waits until the CTA has that many left.
template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_inc() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

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
