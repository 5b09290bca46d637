// What the CTAs of a cluster have of a tile of keys: each a part of its steps, and so of the sums
// that are its gradients.
//
// When all are done, each writes what others are to add up to its own shared memory, where K, V, Q
// and dO were, fp32 as it lies in registers,
//
//     [dK of warpgroup 0 | dK of 1 | dV of 0 | dV of 1], each [values of a thread / 4][128][4]
//
// and the owner of each of these parts reads it from all others.
#pragma once

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

// By all warps of the cluster: those that have nothing to add up, twice.
__device__ __forceinline__ void meet_cluster() {
    __syncwarp();
    ptx::cluster_arrive();
    ptx::cluster_wait();
}

template <int kCluster, int kValues>
struct ClusterSum {
    static constexpr int kThreads = 128, kParts = 4;
    static constexpr unsigned kPartBytes = sizeof(float) * kValues * kThreads;
    static constexpr unsigned kBytes = kParts * kPartBytes;

    const unsigned smem;  // the part's first byte, and this thread's
    const bool is_owner;

    // `gradient` 0: dK, 1: dV.
    __device__ __forceinline__ static ClusterSum of(unsigned smem, int gradient, int warpgroup) {
        const int part = 2 * gradient + warpgroup;
        const unsigned thread = threadIdx.x % kThreads;
        return {smem + part * kPartBytes + thread * static_cast<unsigned>(sizeof(float[4])),
                part * kCluster / kParts == ptx::cluster_rank()};
    }
    __device__ __forceinline__ static unsigned at(int quad) {
        return static_cast<unsigned>(sizeof(float[4])) * kThreads * quad;
    }

    __device__ __forceinline__ void hand_over(const float (&sums)[kValues]) const {
        if (is_owner) return;
#pragma unroll
        for (int i = 0; i < kValues / 4; ++i) {
            const float words[4] = {sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]};
            ptx::st_shared_v4(smem + at(i), words);
        }
    }

    __device__ __forceinline__ void add_up(float (&sums)[kValues]) const {
        if (!is_owner) return;
#pragma unroll 1
        for (int other = 1; other < kCluster; ++other) {
            const int rank = (ptx::cluster_rank() + other) % kCluster;
            const unsigned from = ptx::address_in_cta(smem, rank);
#pragma unroll
            for (int i = 0; i < kValues / 4; ++i) {
                float words[4];
                ptx::ld_cluster_v4(words, from + at(i));
#pragma unroll
                for (int j = 0; j < 4; ++j) sums[4 * i + j] += words[j];
            }
        }
    }
};

}  // namespace fa_tune::sm90::backward
