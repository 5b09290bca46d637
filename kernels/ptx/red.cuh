// A sum in global memory that many CTAs add to.
// PTX ISA: red.global.add.f32.  Minimum: sm_70.
#pragma once

namespace fa_tune::ptx {

// In no order with other threads' adds.
__device__ __forceinline__ void red_add(float* address, float a) {
    asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(address), "f"(a) : "memory");
}

}  // namespace fa_tune::ptx
