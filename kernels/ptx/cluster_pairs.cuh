// Pairs of words in shared memory, those that all CTAs of a cluster read once they have met too.
// PTX ISA: st.shared, ld.shared::cluster.  Minimum: sm_90.
#pragma once

namespace fa_tune::ptx {

__device__ __forceinline__ void st_shared_v2(unsigned address, float first, float second) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(first), "f"(second)
                 : "memory");
}

__device__ __forceinline__ void st_shared_v2(unsigned address, unsigned first, unsigned second) {
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(address), "r"(first), "r"(second)
                 : "memory");
}

// From an address in a CTA of the cluster.
__device__ __forceinline__ void ld_cluster_v2(float (&pair)[2], unsigned address) {
    asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];"
                 : "=f"(pair[0]), "=f"(pair[1])
                 : "r"(address)
                 : "memory");
}

}  // namespace fa_tune::ptx
