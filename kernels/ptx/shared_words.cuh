// Words in shared memory that a barrier hands from one thread to others.
// PTX ISA: st.shared, ld.shared.  Minimum: sm_70.
#pragma once

namespace fa_tune::ptx {

__device__ __forceinline__ void st_shared_v4(unsigned address, const int (&words)[4]) {
    asm volatile("st.shared.v4.s32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words[0]),
                 "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
}

__device__ __forceinline__ void ld_shared_v4(int (&words)[4], unsigned address) {
    asm volatile("ld.shared.v4.s32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ void st_shared(unsigned address, int value) {
    asm volatile("st.shared.s32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
__device__ __forceinline__ int ld_shared(unsigned address) {
    int value;
    asm volatile("ld.shared.s32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
    return value;
}

}  // namespace fa_tune::ptx
