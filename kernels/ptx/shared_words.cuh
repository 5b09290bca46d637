// Four words in shared memory, that a barrier hands from one thread to others.
// PTX ISA: st.shared.v4, ld.shared.v4.  Minimum: sm_70.
#pragma once

namespace ptx {

__device__ __forceinline__ void store_shared_v4(unsigned address, const int (&words)[4]) {
    asm volatile("st.shared.v4.s32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words[0]),
                 "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
}

__device__ __forceinline__ void load_shared_v4(int (&words)[4], unsigned address) {
    asm volatile("ld.shared.v4.s32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address)
                 : "memory");
}

}  // namespace ptx
