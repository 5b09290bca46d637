// Scores that must not count become -inf before the maximum is taken; common/mask.cuh says which.
//
//              key columns of this block
//               c0 ............ c0 + 8 kTilesS - 1
//     row r0    x x x x x . . . .
//     row r0+1  x x x x x x . . .
//        ...
#pragma once

#include "common/constants.cuh"
#include "common/mask.cuh"

namespace fa_tune::mma_sync {

// `first_row`, `first_column`: query and key index of the warp's score (0, 0).
template <bool kCausal, bool kWindow, int kTilesM, int kTilesS>
__device__ __forceinline__ void mask_scores(float (&s)[kTilesM][kTilesS][4], int first_row,
                                            int first_column, int keys, int diagonal,
                                            const int& first_diagonal, int lane) {
#pragma unroll
    for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = first_row + 16 * m + 8 * half + lane / 4;
            const int end = keys_seen<kCausal>(row, keys, diagonal);
#pragma unroll
            for (int n = 0; n < kTilesS; ++n) {
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const int column = first_column + 8 * n + 2 * (lane % 4) + i;
                    if (column >= end) s[m][n][2 * half + i] = negative_infinity();
                    if constexpr (kWindow) {
                        if (column < first_key_seen(row, first_diagonal)) {
                            s[m][n][2 * half + i] = negative_infinity();
                        }
                    }
                }
            }
        }
    }
}

}  // namespace fa_tune::mma_sync
