// The shared memory of a CTA.
//
// Each group of warps has a ring of slices of keys; at a tile's end its sums lie there:
//
//     group 0: | K | V | K | V |   group 1: | K | V | K | V |   ...   | Q | (m, l) | word | parts |
//              | sums of O     |            | sums of O     |
#pragma once

#include "common/problem.cuh"
#include "decode/constraints.cuh"
#include "decode/operands.cuh"
#include "decode/queries.cuh"

namespace fa_tune::decode {

template <DecodeConfig CFG>
struct Layout : Constraints<CFG> {
    static constexpr int kThreads = 32 * CFG.n_warps;
    static constexpr int kGroups = CFG.n_warps / CFG.row_warps;
    static constexpr int kGroupThreads = 32 * CFG.row_warps;
    static constexpr int kKeys = CFG.B_c / kGroups;  // of a slice
    static constexpr int kWarpRows = CFG.B_r / CFG.row_warps;
    using KTile = typename Operands<CFG>::template KTile<kKeys>;
    using VTile = typename Operands<CFG>::template VTile<kKeys>;

    // A group's ring; at a tile's end its sums.
    static constexpr int kStageBytes = KTile::kBytes + VTile::kBytes;
    static constexpr int kRingBytes = CFG.stages * kStageBytes;
    static constexpr int kSumsPitch = whole_chunk_groups(CFG.d_v());
    static constexpr int kSumsBytes = CFG.B_r * kSumsPitch * 4;
    static constexpr int kGroupBytes = kRingBytes > kSumsBytes ? kRingBytes : kSumsBytes;

    // Behind the groups: queries, if warps share them; (m, l) of each group's rows, and a word;
    // with a cluster a barrier, where the parts arrive.
    static constexpr int kQueries = kGroups * kGroupBytes;
    static constexpr int kRowSums =
        kQueries + (CFG.shared_queries ? SharedQueries<CFG>::Tile::kBytes : 0);
    static constexpr int kWord = kRowSums + 8 * kGroups * CFG.B_r;

    // With a cluster what its CTAs write to this one: of its share of the quads of columns of all
    // rows, the parts that the CTAs have, and (m, l) of each.
    static constexpr int kQuads = CFG.B_r * CFG.d_v() / 4 / CFG.cluster;
    static constexpr int kParts = kWord + 16;
    static constexpr int kPartBytes = 16, kSumBytes = 8;
    static constexpr int kPartSums = kParts + kPartBytes * CFG.cluster * kQuads;

    // Chunks of four columns change places against bank conflicts.
    __device__ __forceinline__ static unsigned sums_at(int group, int row, int column) {
        return group * kGroupBytes + 4 * (row * kSumsPitch + (column ^ 8 * (row % 4)));
    }
    __device__ __forceinline__ static unsigned row_sum_at(int group, int row) {
        return kRowSums + 8 * (group * CFG.B_r + row);
    }
    __device__ __forceinline__ static unsigned part_at(int quad, int cta) {
        return kParts + kPartBytes * (cta * kQuads + quad);
    }
    __device__ __forceinline__ static unsigned part_sum_at(int quad, int cta) {
        return kPartSums + kSumBytes * (cta * kQuads + quad);
    }
};

}  // namespace fa_tune::decode
