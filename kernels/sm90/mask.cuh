// Scores that must not count become -inf before the maximum is taken.
//
//              columns of this block            column j of row r counts when
//     row r    x x x x x . . .                      j < keys           (the sequence ends)
//     row r+1  x x x x x x . .                      j <= r + diagonal  (causal)
#pragma once

#include "sm90/softmax.cuh"

// `first_row`: query index of the thread's row 0, row 1 is 8 further down.  `first_column`: key
// index of the thread's first column.  Thread's column 4j + c of a row is first_column + 8j + c.
template <bool kCausal, int kScores>
__device__ __forceinline__ void mask_scores(float (&s)[kScores], int first_row, int first_column,
                                            int keys, int diagonal) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int end = kCausal ? min(keys, first_row + 8 * i + diagonal + 1) : keys;
        const int columns = end - first_column;
#pragma unroll
        for (int j = 0; j < kScores / 4; ++j) {
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                if (8 * j + c >= columns) s[4 * j + 2 * i + c] = negative_infinity();
            }
        }
    }
}
