// What the CTAs of a cluster say to each other.
// PTX ISA: barrier.cluster, mapa, mbarrier.arrive (shared::cluster), st.async,
// cp.async.bulk.tensor (multicast::cluster).  Minimum: sm_90.
//
// An address of shared::cluster names a CTA's shared memory; this CTA's own shared::cta addresses
// are among them.  Nobody may leave while another CTA can still write to its shared memory.
#pragma once

#include "ptx/tma.cuh"

namespace ptx {

// All threads of the cluster that have not left meet here, and see each other's earlier writes.
__device__ __forceinline__ void cluster_sync() {
    asm volatile(
        "barrier.cluster.arrive.release;\n"
        "barrier.cluster.wait.acquire;" ::
            : "memory");
}

// Where `address` of this CTA's shared memory lies in that of CTA `rank` of the cluster.
__device__ __forceinline__ unsigned in_cta(unsigned address, unsigned rank) {
    unsigned mapped;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
    return mapped;
}

// At a barrier of any CTA of the cluster.
__device__ __forceinline__ void mbarrier_arrive_cluster(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive_expect_tx_cluster(unsigned barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cluster.b64 _, [%0], %1;" ::"r"(barrier),
                 "r"(bytes)
                 : "memory");
}

// Four words to the shared memory of any CTA of the cluster, whose barrier counts their 16 bytes.
__device__ __forceinline__ void store_async_cluster(unsigned address, unsigned barrier,
                                                    const int (&words)[4]) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.s32 [%0], {%2, %3, %4, %5}, "
        "[%1];" ::"r"(address),
        "r"(barrier), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
        : "memory");
}

// As tma_load_4d, but to the same place of every CTA in `ctas` (a bit each); the bytes arrive at
// the barrier at the same place in each.
__device__ __forceinline__ void tma_load_4d_multicast(unsigned destination, const TensorMap& map,
                                                      unsigned barrier, unsigned short ctas,
                                                      unsigned long long policy, int c0, int c1,
                                                      int c2, int c3) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".multicast::cluster.L2::cache_hint [%0], [%1, {%5, %6, %7, %8}], [%2], %3, %4;" ::"r"(
            destination),
        "l"(&map), "r"(barrier), "h"(ctas), "l"(policy), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
        : "memory");
}

}  // namespace ptx
