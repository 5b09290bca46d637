// Barriers of a CTA by number, for some of its warps.
// PTX ISA: barrier.cta (bar.sync, bar.arrive).  Minimum: sm_70.
//
// There are 16; number 0 is that of __syncthreads().  `threads` counts those that wait and
// those that only arrive, and is a multiple of 32.
#pragma once

namespace ptx {

// Arrive and wait until all have arrived.
__device__ __forceinline__ void named_barrier_sync(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Arrive and go on.
__device__ __forceinline__ void named_barrier_arrive(int barrier, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// True in one lane of the (converged) warp, and known to the assembler to be one.
__device__ __forceinline__ bool elect_one() {
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

}  // namespace ptx
