// The number of a thread in its CTA, read here and not again.
//
// What the compiler knows as threadIdx.x it may read anew wherever registers are short, and so in
// a loop in which the many cycles that takes show.
#pragma once

namespace fa_tune::ptx {

__device__ __forceinline__ int tid_x() {
    int x;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
    return x;
}

}  // namespace fa_tune::ptx
