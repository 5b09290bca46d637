// Scores that must not count become -inf before the maximum is taken.
//
//              columns of this block            column j of row r counts when
//     row r    x x x x x . . .                      j < keys           (the sequence ends)
//     row r+1  x x x x x x . .                      j <= r + diagonal  (causal)
#pragma once

#include "sm90/softmax.cuh"

// `first_row`: query index of the thread's row 0, row 1 is 8 further down.  `first_column`: key
// index of the thread's first column.  Thread's column 4j + c of a row is first_column + 8j + c.
// The first kCount scores are masked.
template <bool kCausal, int kCount, int kScores>
__device__ __forceinline__ void mask_scores(float (&s)[kScores], int first_row, int first_column,
                                            int keys, int diagonal) {
    constexpr int kOfRow = kCount / 2;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int end = kCausal ? min(keys, first_row + 8 * i + diagonal + 1) : keys;
        const int columns = max(0, end - first_column);
        // How many of the thread's scores of the row count: two of every eight columns.
        const int count = columns / 8 * 2 + min(columns % 8, 2);
#pragma unroll
        for (int first = 0; first < kOfRow; first += 32) {
            // A word of bits, tested against constants, costs one instruction for seven scores.
            const int in_word = max(0, min(count - first, 32));
            const unsigned counts = __funnelshift_rc(0xffffffffu, 0u, 32 - in_word);
#pragma unroll
            for (int e = first; e < kOfRow && e < first + 32; ++e) {
                float& x = s[e / 2 * 4 + 2 * i + e % 2];
                if (!(counts & 1u << (e - first))) x = negative_infinity();
            }
        }
    }
}
