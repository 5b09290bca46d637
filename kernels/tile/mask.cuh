// Scores that must not count become -inf before the maximum is taken.
//
//              key columns of this block
//               c0 ............ c0 + 8 kTilesS - 1
//     row r0    x x x x x . . . .        column j of row i counts when
//     row r0+1  x x x x x x . . .            j < keys          (the sequence ends)
//        ...                                 j <= i + diagonal (causal)
#pragma once

#include "tile/online_softmax.cuh"

namespace tile {

// `first_row`, `first_column`: query and key index of the warp's score (0, 0).
template <bool kCausal, int kTilesM, int kTilesS>
__device__ __forceinline__ void mask_scores(float (&s)[kTilesM][kTilesS][4], int first_row,
                                            int first_column, int keys, int diagonal, int lane) {
#pragma unroll
    for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = first_row + 16 * m + 8 * half + lane / 4;
            const int end = kCausal ? min(keys, row + diagonal + 1) : keys;
#pragma unroll
            for (int n = 0; n < kTilesS; ++n) {
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const int column = first_column + 8 * n + 2 * (lane % 4) + i;
                    if (column >= end) s[m][n][2 * half + i] = negative_infinity();
                }
            }
        }
    }
}

}  // namespace tile
