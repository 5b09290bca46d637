// Barriers of a CTA by number, for some of its warps.
// PTX ISA: barrier.cta (bar.sync, bar.arrive).  Minimum: sm_70.
//
// There are 16; number 0 is that of __syncthreads().  `threads` counts those that wait and
// those that only arrive, and is a multiple of 32.
#pragma once

namespace fa_tune::ptx {

// Arrive and wait until all have arrived.
__device__ __forceinline__ void bar_sync(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Arrive and go on.
__device__ __forceinline__ void bar_arrive(int barrier, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

}  // namespace fa_tune::ptx
