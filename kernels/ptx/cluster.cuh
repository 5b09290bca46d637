// CTAs of a cluster: who one is, where all meet, and what lies in the others' shared memory.
// PTX ISA: barrier.cluster, mapa, st.shared::cluster, %cluster_ctarank.  Minimum: sm_90.
#pragma once

namespace fa_tune::ptx {

// Of this CTA in its cluster.
__device__ __forceinline__ int cluster_rank() {
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return static_cast<int>(rank);
}

// What this thread has done comes before what others do behind their wait.
__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

// Until all threads of the cluster have arrived.
__device__ __forceinline__ void cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The address in the shared memory of that CTA of what lies at `address` in one's own.
__device__ __forceinline__ unsigned address_in_cta(unsigned address, int rank) {
    unsigned found;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(found) : "r"(address), "r"(rank));
    return found;
}

__device__ __forceinline__ void st_cluster_v4(unsigned address, const float (&words)[4]) {
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(words[0]),
                 "f"(words[1]), "f"(words[2]), "f"(words[3])
                 : "memory");
}

__device__ __forceinline__ void st_cluster_v2(unsigned address, float first, float second) {
    asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(first), "f"(second)
                 : "memory");
}

}  // namespace fa_tune::ptx
