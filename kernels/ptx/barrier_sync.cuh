// A barrier of a CTA by number, as in bar.cuh, where warps wait at different places of the code: of
// bar.sync all that wait must be at one instruction.
// PTX ISA: barrier.cta (barrier.sync).  Minimum: sm_70.
#pragma once

namespace fa_tune::ptx {

// Arrive and wait until all `threads` have arrived.
__device__ __forceinline__ void barrier_sync(int barrier, int threads) {
    asm volatile("barrier.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

}  // namespace fa_tune::ptx
