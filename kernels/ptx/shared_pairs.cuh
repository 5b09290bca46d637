// Two neighbouring fp32 numbers in shared memory.
// PTX ISA: ld.shared.v2.f32.  Minimum: sm_70.
#pragma once

namespace fa_tune::ptx {

__device__ __forceinline__ void ld_shared_v2(float (&pair)[2], unsigned address) {
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(pair[0]), "=f"(pair[1]) : "r"(address));
}

}  // namespace fa_tune::ptx
