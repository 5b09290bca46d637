// Words in shared memory that all CTAs of a cluster read once they have met.
// PTX ISA: st.shared, barrier.cluster.arrive, ld.shared::cluster.  Minimum: sm_90.
#pragma once

namespace fa_tune::ptx {

__device__ __forceinline__ void st_shared_v4(unsigned address, const float (&words)[4]) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(words[0]),
                 "f"(words[1]), "f"(words[2]), "f"(words[3])
                 : "memory");
}

// What this thread has written is there for those who wait.
__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

// From an address in a CTA of the cluster.
__device__ __forceinline__ void ld_cluster_v4(float (&words)[4], unsigned address) {
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(words[0]), "=f"(words[1]), "=f"(words[2]), "=f"(words[3])
                 : "r"(address)
                 : "memory");
}

}  // namespace fa_tune::ptx
