// Sums in global memory that many CTAs add to.
// PTX ISA: red.global.add.v4.f32.  Minimum: sm_90.
#pragma once

namespace fa_tune::ptx {

// Each of four neighbouring words is added to by itself, in no order with other threads' adds.
// `address` is a multiple of 16 bytes.
__device__ __forceinline__ void red_add_v4(float* address, float a, float b, float c, float d) {
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(address), "f"(a),
                 "f"(b), "f"(c), "f"(d)
                 : "memory");
}

}  // namespace fa_tune::ptx
