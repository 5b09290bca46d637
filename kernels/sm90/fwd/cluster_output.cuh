// O of a tile whose keys the CTAs of a cluster have divided, each with a softmax of its own.
//
//     each CTA    O of its keys, fp32, where K and V were, and of each row m and l (softmax.cuh):
//                   | 64 rows x 64 columns | ...      a box for each panel of each warpgroup
//     all meet
//     CTA r       boxes r, r + cluster, ... of all CTAs:  O = sum_i w_i O_i / sum_i w_i,
//                   w_i = l_i 2^(m_i - m);  rounded, where Q was, and from there by bulk copies
//     all meet    what lies in a CTA's shared memory outlasts those who read it
//
// A row of a box is 16 chunks of four numbers.  Chunk c of row r lies at c XOR 2 (r % 8), so that
// the stores of a warp's fragments are in all banks.
#pragma once

#include "common/constants.cuh"
#include "common/scores.cuh"
#include "ptx/bar.cuh"
#include "ptx/cluster.cuh"
#include "ptx/cluster_pairs.cuh"
#include "ptx/cluster_words.cuh"
#include "ptx/cp_async_bulk.cuh"
#include "ptx/elect.cuh"
#include "ptx/ex2.cuh"
#include "ptx/lg2.cuh"
#include "sm90/fwd/named_barriers.cuh"
#include "sm90/fwd/params.cuh"
#include "sm90/fwd/scheduler.cuh"
#include "sm90/fwd/shared_memory.cuh"

namespace fa_tune::sm90 {

// By all warps of the cluster: those that have no part of O, twice.
__device__ __forceinline__ void meet_cluster() {
    __syncwarp();
    ptx::cluster_arrive();
    ptx::cluster_wait();
}

template <Sm90Config CFG, WorkloadTraits TRAITS, class Softmax>
struct ClusterOutput {
    using OTile = typename SharedMemory<CFG>::OTile;
    static constexpr int kCluster = CFG.splits;
    static constexpr int kBoxes = CFG.mma_warpgroups * OTile::kPanels;
    static constexpr unsigned kBoxRowBytes = sizeof(float) * OTile::kPanelColumns;
    static constexpr unsigned kBoxBytes = OTile::kRows * kBoxRowBytes;
    static_assert(kBoxes * kBoxBytes == SharedMemory<CFG>::kPartBytes
                  /* which has room, constraints.cuh: "splits need room for fp32 O of a tile" */);

    const ForwardParams& p;
    const ptx::TensorMap& o_map;
    const SharedAddress<CFG> smem;
    const int warpgroup, warp, lane;

    // This CTA's part: O times `factor`, which is O of these keys alone, and m and l of the rows.
    template <int kOutputs>
    __device__ __forceinline__ void hand_over(const float (&o)[kOutputs], const float (&factor)[2],
                                              const float (&row_max)[2],
                                              const float (&row_sum)[2]) const {
        wait_for_consumers();
        tell_rows(row_max, row_sum);
#pragma unroll
        for (int t = 0; t < CFG.padded_d_v() / 16; ++t) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                // Columns 2 (lane % 4) and + 1 of eight of the fragment's 16.
                const int row = 16 * warp + 8 * (i % 2) + lane / 4;
                const int chunk = 4 * (t % 4) + 2 * (i / 2) + lane % 4 / 2;
                const int j = 8 * t + 2 * i;
                ptx::st_shared_v2(box(warpgroup, t / 4) + chunk_offset(row, chunk) + lane % 2 * 8,
                                  o[j] * factor[i % 2], o[j + 1] * factor[i % 2]);
            }
        }
    }

    // Of a CTA that has none of the tile's keys.
    __device__ __forceinline__ void hand_over_nothing() const {
        constexpr float kLowest = Softmax::kLowest;
        tell_rows({kLowest, kLowest}, {0.f, 0.f});
    }

    __device__ __forceinline__ void combine(const WorkTile& tile,
                                            const Sequence<TRAITS.packed>& sequence) const {
        meet_cluster();
        const float sink = sink_exponent<TRAITS>(p, tile.head);
#pragma unroll 1
        for (int b = ptx::cluster_rank() + kCluster * warpgroup; b < kBoxes;
             b += kCluster * CFG.mma_warpgroups) {
            const int group = b / OTile::kPanels, panel = b % OTile::kPanels;
#pragma unroll 2
            for (int pair = 0; pair < 8; ++pair) {
                combine_row(tile, group, panel, 16 * warp + 2 * pair + lane / 16, sink);
            }
            ptx::fence_proxy_async_shared();
            ptx::bar_sync(static_cast<int>(NamedBarrier::EPILOGUE) + warpgroup, 128);
            if (warp == 0 && ptx::elect_sync()) {
                const BoxPlace place =
                    sequence.template q_box<64>(first_row<CFG>(tile, group), tile.batch);
                store_box<TRAITS.packed>(o_map, smem.q(group) + panel * OTile::kPanelBytes,
                                         64 * panel, tile.head, place);
                ptx::cp_async_bulk_commit_group();
            }
        }
        meet_cluster();
    }

  private:
    // No warpgroup reads K or V any more.
    __device__ __forceinline__ static void wait_for_consumers() {
        ptx::bar_sync(static_cast<int>(NamedBarrier::DIVIDED), 128 * CFG.mma_warpgroups);
    }

    __device__ __forceinline__ unsigned box(int group, int panel) const {
        return smem.k(0) + (group * OTile::kPanels + panel) * kBoxBytes;
    }

    __device__ __forceinline__ static unsigned chunk_offset(int row, int chunk) {
        return row * kBoxRowBytes + ((chunk ^ 2 * (row % 8)) << 4);
    }

    __device__ __forceinline__ void tell_rows(const float (&row_max)[2],
                                              const float (&row_sum)[2]) const {
        if (lane % 4 != 0) return;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int row = 64 * warpgroup + 16 * warp + 8 * i + lane / 4;
            ptx::st_shared_v2(smem.row_part(row), row_max[i], row_sum[i]);
        }
    }

    // A lane's four columns of a row of a box; 16 lanes have it all.
    __device__ __forceinline__ void combine_row(const WorkTile& tile, int group, int panel, int row,
                                                float sink) const {
        float weight[kCluster], most = TRAITS.sink ? sink : Softmax::kLowest;
        float part[kCluster][2];
#pragma unroll
        for (int i = 0; i < kCluster; ++i) {
            ptx::ld_cluster_v2(part[i], ptx::address_in_cta(smem.row_part(64 * group + row), i));
            if (part[i][1] != 0.f) most = fmaxf(most, part[i][0]);
        }
        float total = TRAITS.sink ? ptx::ex2_approx(sink - most) : 0.f;
#pragma unroll
        for (int i = 0; i < kCluster; ++i) {
            weight[i] = part[i][1] == 0.f ? 0.f : part[i][1] * ptx::ex2_approx(part[i][0] - most);
            total += weight[i];
        }
        float sum[4] = {};
        const unsigned own = box(group, panel) + chunk_offset(row, lane % 16);
#pragma unroll
        for (int i = 0; i < kCluster; ++i) {
            if (part[i][1] == 0.f) continue;  // nothing, or what was never written
            float words[4];
            ptx::ld_cluster_v4(words, ptx::address_in_cta(own, i));
#pragma unroll
            for (int j = 0; j < 4; ++j) sum[j] = fmaf(weight[i], words[j], sum[j]);
        }
        const float inverse = total == 0.f ? 0.f : 1.f / total;
        ptx::st_shared_v2(
            smem.q(group) + OTile::offset(row, 8 * panel + lane % 16 / 2) + lane % 2 * 8,
            Softmax::round(sum[0] * inverse, sum[1] * inverse),
            Softmax::round(sum[2] * inverse, sum[3] * inverse));
        if constexpr (TRAITS.lse) {
            const int query = first_row<CFG>(tile, group) + row;
            if (panel == 0 && lane % 16 == 0 && query < p.seq_len_q) {
                const long long head = tile.batch * p.heads + tile.head;
                p.lse[head * p.seq_len_q + query] = log_sum_exp(most, total);
            }
        }
    }

    // The headroom of m is taken from it first: near 0 the two logarithms would cancel.
    __device__ __forceinline__ float log_sum_exp(float most, float total) const {
        constexpr float kRoom = TRAITS.sink ? 0.f : Softmax::kHeadroom;
        constexpr float kFactor = TRAITS.sink ? 1.f : Softmax::kHeadroomFactor;
        const float power = most - kRoom + ptx::lg2_approx(total * kFactor);
        const float found = total == 0.f ? negative_infinity() : power * kLn2;
        return has_score_shift<TRAITS>() ? found - score_shift<TRAITS>(p) : found;
    }
};

}  // namespace fa_tune::sm90
