// The queries of a tile on their way to the registers of all warps, by way of shared memory.
//
// A lane's operands of Q are words of four bytes in all rows of its warp.  To load them from memory
// that way takes L1 as long as the first keys take to arrive, since every warp loads all of its
// rows; and behind the first keys they wait for these.  So a CTA asks for its queries before any
// key, in whole chunks and once, and warps take their operands from shared memory:
//
//     memory  -- Q, then K, V -->  registers, ring      each thread some chunks of Q
//     registers  -- Q -->  shared memory  -->  operands of all warps
#pragma once

#include "common/swizzle.cuh"
#include "decode/operands.cuh"
#include "decode/work.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/shared_words.cuh"

namespace fa_tune::decode {

template <DecodeConfig CFG>
struct SharedQueries {
    using Tile = SmemTile<CFG.B_r, CFG.padded_d(), true>;
    static constexpr int kThreads = 32 * CFG.n_warps;
    static constexpr int kChunks = Tile::kRows * Tile::kChunks;
    static constexpr int kOwn = (kChunks + kThreads - 1) / kThreads;  // of a thread

    uint4 own[kOwn];

    // Asks memory for this thread's chunks.  Rows that there are none of are zeros.
    __device__ __forceinline__ void load(const DecodeParams& p, const TileRows& rows) {
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
            const int chunk = threadIdx.x + i * kThreads;
            const int row = chunk / Tile::kChunks;
            own[i] = {0, 0, 0, 0};
            if (row >= rows.count) continue;
            if (CFG.d_head < Tile::kColumns && 8 * (chunk % Tile::kChunks) >= CFG.d_head) continue;
            own[i] = *reinterpret_cast<const uint4*>(p.q + rows.offset(p, p.q_strides, row) +
                                                     8 * (chunk % Tile::kChunks));
        }
    }
    // To a tile in shared memory.  By all threads of the CTA, before a barrier.
    __device__ __forceinline__ void share(unsigned tile) const {
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
            const int chunk = threadIdx.x + i * kThreads;
            if (kChunks % kThreads != 0 && chunk >= kChunks) break;
            *reinterpret_cast<uint4*>(__cvta_shared_to_generic(
                tile + Tile::offset(chunk / Tile::kChunks, chunk % Tile::kChunks))) = own[i];
        }
    }

    // The operand of 16 rows from `row` on of a k-step, as it meets K (decode/operands.cuh).
    __device__ __forceinline__ static void operand(unsigned (&words)[4], unsigned tile, int row,
                                                   int step, int lane) {
        if constexpr (Operands<CFG>::kNarrow) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const unsigned chunk =
                    Tile::offset(row + 8 * half + lane / 4, 2 * step + lane % 4 / 2);
                words[half] = ptx::ld_shared(tile + chunk + lane % 2 * 8);
                words[half + 2] = ptx::ld_shared(tile + chunk + lane % 2 * 8 + 4);
            }
        } else {
            const LaneAddress<Tile> own(tile, row + lane % 16, lane / 16);
            ptx::ldmatrix_x4(words, own.at(step, 0));
        }
    }
};

}  // namespace fa_tune::decode
