// K and V in shared memory, and the operands of products that a lane takes from there.
//
// Of 16-bit elements a 16-byte chunk is 8 columns.  Of e4m3 it is 16: a k-step of Q K^T, two tiles
// of O.  What ldmatrix gives a lane are then, of a key, four neighbouring columns; with .trans two
// columns of two keys.  So the columns of Q and O stand in another order:
//
//     S   k index 2 i, 2 i + 1, 2 i + 8, 2 i + 9 of a step   is column 4 i, ..., 4 i + 3 of the
//     chunk O   column i of the chunk's first tile, second tile    is column 2 i, 2 i + 1 of the
//     chunk
#pragma once

#include "common/swizzle.cuh"
#include "decode/config.cuh"
#include "mma_sync/element.cuh"
#include "ptx/cvt.cuh"
#include "ptx/e4m3.cuh"
#include "ptx/ldmatrix.cuh"

namespace fa_tune::decode {

// Four e4m3 numbers as two words of the element type.
template <DType kType>
__device__ __forceinline__ void widen(unsigned (&words)[2], unsigned numbers) {
    ptx::cvt_f16x2_e4m3(words, numbers);
    if constexpr (kType == DType::BF16) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            float lower, upper;
            ptx::cvt_f32_f16x2(lower, upper, words[i]);
            words[i] = ptx::cvt_rn_bf16x2_f32(lower, upper);
        }
    }
}

template <DecodeConfig CFG>
struct Operands {
    static constexpr bool kNarrow = CFG.kv_type == KVType::E4M3;
    static constexpr int kNumbers = kNarrow ? 2 : 1;  // of two bytes
    static constexpr int kStepsOfPair = kNarrow ? 2 : 1;
    using Elem = mma_sync::Element<CFG.dtype>;

    template <int kKeys>
    using KTile = SmemTile<kKeys, CFG.padded_d() / kNumbers, true>;
    template <int kKeys>
    using VTile = SmemTile<kKeys, CFG.padded_d_v() / kNumbers, true>;
    // Of a row in memory.
    static constexpr int kColumnsK = CFG.d_head / kNumbers, kColumnsV = CFG.d_v() / kNumbers;

    // A lane's words of Q, of a k-step: its first column, and the words from there on.
    __device__ __forceinline__ static int q_column(int lane) {
        return lane % 4 * (kNarrow ? 4 : 2);
    }
    __device__ __forceinline__ static constexpr int q_word(int step, int half) {
        return 8 * step + half * (kNarrow ? 1 : 4);
    }

    // Of a pair of chunks of K, for 16 keys from `row` on: [k-step][half of the keys][words].
    template <class Lane>
    __device__ __forceinline__ static void load_k(unsigned (&b)[kStepsOfPair][2][2],
                                                  const Lane& lane, int pair, int row) {
        unsigned words[4];
        ptx::ldmatrix_x4(words, lane.at(pair, row));
#pragma unroll
        for (int keys = 0; keys < 2; ++keys) {
            if constexpr (kNarrow) {
                widen<CFG.dtype>(b[0][keys], words[2 * keys]);
                widen<CFG.dtype>(b[1][keys], words[2 * keys + 1]);
            } else {
                b[0][keys][0] = words[2 * keys];
                b[0][keys][1] = words[2 * keys + 1];
            }
        }
    }

    // Of a pair of chunks of V, for 16 keys: [tile of O][words].
    template <class Lane>
    __device__ __forceinline__ static void load_v(unsigned (&b)[2 * kStepsOfPair][2],
                                                  const Lane& lane, int pair, int row) {
        unsigned words[4];
        ptx::ldmatrix_x4_trans(words, lane.at(pair, row));
#pragma unroll
        for (int chunk = 0; chunk < 2; ++chunk) {
#pragma unroll
            for (int keys = 0; keys < 2; ++keys) {
                if constexpr (kNarrow) {
                    unsigned both[2];
                    widen<CFG.dtype>(both, ptx::prmt_0213(words[2 * chunk + keys]));
                    b[2 * chunk][keys] = both[0];
                    b[2 * chunk + 1][keys] = both[1];
                } else {
                    b[chunk][keys] = words[2 * chunk + keys];
                }
            }
        }
    }

    // The column of O of a lane's element of a tile, 0 or 1 in its row.
    __device__ __forceinline__ static int o_column(int tile, int lane, int element) {
        return kNarrow ? tile / 2 * 16 + lane % 4 * 4 + 2 * element + tile % 2
                       : tile * 8 + lane % 4 * 2 + element;
    }
};

}  // namespace fa_tune::decode
