// Scores that must not count become -inf before the maximum is taken; common/mask.cuh says which.
//
// A thread holds two rows, 8 apart; of each, two columns of every eight:
//
//     row r      . . x x . . . .   . . x x . . . .   ...      4j + 0, 4j + 1
//     row r + 8  . . x x . . . .   . . x x . . . .   ...      4j + 2, 4j + 3
#pragma once

#include "common/constants.cuh"
#include "common/mask.cuh"

namespace fa_tune::sm90 {

// `first_row`: query index of the thread's row 0.  `first_column`: key index of its first column.
template <bool kCausal, bool kWindow, int kScores>
__device__ __forceinline__ void mask_scores(float (&s)[kScores], int first_row, int first_column,
                                            int keys, int diagonal, const int& first_diagonal) {
    constexpr int kOfRow = kScores / 2;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int end = keys_seen<kCausal>(first_row + 8 * i, keys, diagonal);
        const int columns = max(0, end - first_column);
        // How many of the thread's scores of the row count: two of every eight columns.
        const int count = columns / 8 * 2 + min(columns % 8, 2);
        int hidden = 0;  // as many of them lie before the window
        if constexpr (kWindow) {
            const int start = first_key_seen(first_row + 8 * i, first_diagonal);
            const int before = max(0, start - first_column);
            hidden = before / 8 * 2 + min(before % 8, 2);
        }
#pragma unroll
        for (int first = 0; first < kOfRow; first += 32) {
            // A word of bits, tested against constants, costs one instruction for seven scores.
            const int in_word = max(0, min(count - first, 32));
            unsigned counts = __funnelshift_rc(0xffffffffu, 0u, 32 - in_word);
            if constexpr (kWindow) {
                const int not_yet = max(0, min(hidden - first, 32));
                counts &= ~__funnelshift_rc(0xffffffffu, 0u, 32 - not_yet);
            }
#pragma unroll
            for (int e = first; e < kOfRow && e < first + 32; ++e) {
                float& x = s[e / 2 * 4 + 2 * i + e % 2];
                if (!(counts & 1u << (e - first))) x = negative_infinity();
            }
        }
    }
}

}  // namespace fa_tune::sm90
