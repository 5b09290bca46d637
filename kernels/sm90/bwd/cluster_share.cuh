// What the CTAs of a cluster have of a tile: each a part of its steps, and so of the sums that are
// its gradients.
//
// When all are done, each writes what others are to add up to its own shared memory, from its
// beginning, fp32 as it lies in registers: panels of 64 rows and columns, each
// [values of a thread / 4][128][4],
//
//     dK, dV of up to 128 columns   [dK of warpgroup 0 | dK of 1 | dV of 0 | dV of 1]
//     dK, dV of more                [dV | dK]
//     dQ                            [of warpgroup 0 | of 1]
//
// and the owner of each panel reads it from all others, in the order of their ranks after its own.
#pragma once

#include "common/backward/mask.cuh"
#include "ptx/cluster.cuh"
#include "ptx/cluster_words.cuh"

namespace fa_tune::sm90::backward {

// Steps of a tile, those of all heads of a group for a block of queries, then of the next block.
struct StepShare {
    int first, count;
};

template <int kCluster>
__device__ __forceinline__ StepShare share_of_cta(int steps) {
    if constexpr (kCluster == 1) return {0, steps};
    const int rank = ptx::cluster_rank();
    const int first = steps * rank / kCluster;
    return {first, steps * (rank + 1) / kCluster - first};
}

// Of a tile's blocks of keys.
template <int kCluster>
__device__ __forceinline__ Range share_of_cta(const Range& blocks) {
    const StepShare share = share_of_cta<kCluster>(blocks.count());
    return {blocks.first + share.first, blocks.first + share.first + share.count};
}

// By all warps of the cluster: those that have nothing to add up, twice.
__device__ __forceinline__ void meet_cluster() {
    __syncwarp();
    ptx::cluster_arrive();
    ptx::cluster_wait();
}

// A thread's values of one gradient or of a part of it, whose first panel is number `first_panel`
// of the kPanels that the cluster has to add up.
template <int kCluster, int kPanels, int kValues>
struct ClusterSum {
    static constexpr int kThreads = 128, kPanelQuads = 8;  // of a thread
    static constexpr unsigned kQuadBytes = sizeof(float[4]) * kThreads;
    static constexpr unsigned kPanelBytes = kPanelQuads * kQuadBytes;
    static constexpr unsigned kBytes = kPanels * kPanelBytes;

    const unsigned smem;  // of the CTA's first panel
    const int first_panel;

    __device__ __forceinline__ void hand_over(const float (&values)[kValues]) const {
#pragma unroll
        for (int i = 0; i < kValues / 4; ++i) {
            if (owns(i / kPanelQuads)) continue;
            const float words[4] = {values[4 * i], values[4 * i + 1], values[4 * i + 2],
                                    values[4 * i + 3]};
            ptx::st_shared_v4(of_thread() + kQuadBytes * i, words);
        }
    }

    __device__ __forceinline__ void add_up(float (&values)[kValues]) const {
#pragma unroll
        for (int first = 0; first < kValues / 4; first += kPanelQuads) {
            if (!owns(first / kPanelQuads)) continue;
#pragma unroll 1
            for (int other = 1; other < kCluster; ++other) {
                const int rank = (ptx::cluster_rank() + other) % kCluster;
                const unsigned from = ptx::address_in_cta(of_thread(), rank);
#pragma unroll
                for (int i = first; i < first + kPanelQuads && i < kValues / 4; ++i) {
                    float words[4];
                    ptx::ld_cluster_v4(words, from + kQuadBytes * i);
#pragma unroll
                    for (int j = 0; j < 4; ++j) values[4 * i + j] += words[j];
                }
            }
        }
    }

    // Whether this CTA is the one that has a panel of these at last.
    __device__ __forceinline__ bool owns(int panel) const {
        if constexpr (kCluster == 1) return true;
        return (first_panel + panel) * kCluster / kPanels == ptx::cluster_rank();
    }

  private:
    __device__ __forceinline__ unsigned of_thread() const {
        const unsigned thread = threadIdx.x % kThreads;
        return smem + first_panel * kPanelBytes + thread * static_cast<unsigned>(sizeof(float[4]));
    }
};

}  // namespace fa_tune::sm90::backward
