// One lane of a warp, chosen by the hardware.
// PTX ISA: elect.sync.  Minimum: sm_90.
//
// Unlike a test of the lane number it tells the assembler that one lane alone goes on, which
// otherwise loops over the lanes around every bulk copy.
#pragma once

namespace fa_tune::ptx {

// True in one lane of the converged warp.
__device__ __forceinline__ bool elect_sync() {
    unsigned elected;
    asm volatile(
        "{\n"
        ".reg .pred one;\n"
        "elect.sync _|one, 0xffffffff;\n"
        "selp.u32 %0, 1, 0, one;\n"
        "}"
        : "=r"(elected));
    return elected != 0;
}

}  // namespace fa_tune::ptx
