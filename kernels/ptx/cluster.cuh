// CTAs of a cluster: who one is, where all meet, and what lies in the others' shared memory.
// PTX ISA: barrier.cluster, mapa, st.async, %cluster_ctarank.  Minimum: sm_90.
#pragma once

namespace fa_tune::ptx {

// Of this CTA in its cluster.
__device__ __forceinline__ int cluster_rank() {
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return static_cast<int>(rank);
}

// Nothing but that this thread is here: writes that others are to see need a fence before it.
__device__ __forceinline__ void cluster_arrive_relaxed() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
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

// Words to an address in a CTA of the cluster; their bytes arrive at `barrier`, in the same CTA.
__device__ __forceinline__ void st_async_v4(unsigned address, const float (&words)[4],
                                            unsigned barrier) {
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
        "[%5];" ::"r"(address),
        "f"(words[0]), "f"(words[1]), "f"(words[2]), "f"(words[3]), "r"(barrier)
        : "memory");
}

__device__ __forceinline__ void st_async_v2(unsigned address, float first, float second,
                                            unsigned barrier) {
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(
            address),
        "f"(first), "f"(second), "r"(barrier)
        : "memory");
}

}  // namespace fa_tune::ptx
