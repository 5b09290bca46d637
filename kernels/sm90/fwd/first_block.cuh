// What a tile's first block tells of a warp's 16 rows, from few of their scores.
//
//                 columns 0 to 7            all others
//     row 0    | x x  x x  x x  x x |  ...  maximum  ...      range: highest maximum less least x
//     row 1    | x x  x x  x x  x x |  ...  maximum  ...
//      ...        lane 0 ... lane 3                           spread of a row: of the lower x of
//     row 15   | x x  x x  x x  x x |  ...  maximum  ...      each lane, highest less least
//
// All of them are exponents, c s (softmax.cuh).
#pragma once

#include "common/constants.cuh"
#include "common/scores.cuh"

namespace fa_tune::sm90 {

template <bool kBf16, int kScores>
struct FirstBlock {
    // Where a warp's scores are further apart than this (in powers of two), later blocks are likely
    // to outgrow its maxima by more than P may grow.  Then maxima come first, in a block for each
    // so many powers.
    static constexpr unsigned kPeakedRange = kBf16 ? 130 : 64;
    static constexpr unsigned kRangeOfBlock = kBf16 ? 32 : 16;
    static constexpr unsigned kMostPeakedBlocks = 12;
    // A mask shows most rows fewer keys than later blocks do, so that their first maxima are too
    // low and far apart.  There m is raised towards the highest of the warp, by at most so many
    // powers of two.
    static constexpr float kMostRaise = kBf16 ? 20.f : 8.f;
    // In fp16, where scores are not close, by no more than the row's own are apart: the highest may
    // be another row's sink, and a row whose scores are near each other would lose digits of all
    // its weights.
    static constexpr bool kRaiseIsOfRow = !kBf16;
    // A warp's scores that are no further apart than this are close: a row of them is no one key's.
    static constexpr unsigned kClose = 12;

    // The least of a few scores of the warp's rows, those that a mask hides left out.
    __device__ __forceinline__ static int least_of_few(const float (&s)[kScores],
                                                       float scale_log2) {
        float least = -negative_infinity();
#pragma unroll
        for (int x = 0; x < 4; ++x) {
            least = fminf(least, s[x] > negative_infinity() ? s[x] : least);
        }
        return __reduce_min_sync(kAllLanes, __float2int_rn(least * scale_log2));
    }

    __device__ __forceinline__ static int highest_of(const float (&of_row)[2]) {
        return __reduce_max_sync(kAllLanes, __float2int_rn(fmaxf(of_row[0], of_row[1])));
    }

    __device__ __forceinline__ static unsigned range(int least, int most) {
        return least >= most ? 0u : static_cast<unsigned>(most) - static_cast<unsigned>(least);
    }

    // Blocks in which maxima come first, of a warp whose scores are so far apart.
    __device__ __forceinline__ static int peaked_blocks(unsigned apart) {
        return apart > kPeakedRange ? min(apart / kRangeOfBlock, kMostPeakedBlocks) : 0;
    }

    // By how much m of rows with such maxima is raised: whole powers of two, so that a weight that
    // is a power of two stays one.
    __device__ __forceinline__ static void raise_to(int most, unsigned apart,
                                                    const float (&s)[kScores], float scale_log2,
                                                    const float (&highest)[2], float (&raise)[2]) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float lag = static_cast<float>(most) - highest[i];
            raise[i] = floorf(fminf(fmaxf(lag, 0.f), kMostRaise));
        }
        if constexpr (kRaiseIsOfRow) {
            if (apart <= kClose) return;
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                raise[i] = fminf(raise[i], floorf(row_spread(s, scale_log2, i)));
            }
        }
    }

  private:
    // How far apart a few scores of row i are: a key that is far above all others is none of them,
    // and what a mask hides is NaN, which is no maximum.
    __device__ __forceinline__ static float row_spread(const float (&s)[kScores], float scale_log2,
                                                       int i) {
        float lower = __int_as_float(0x7fffffff);
#pragma unroll
        for (int c = 0; c < 2; ++c) {
            const float x = s[2 * i + c] * scale_log2;
            lower = fminf(lower, x > negative_infinity() ? x : lower);
        }
        return quad_max(lower) + quad_max(-lower);
    }
};

}  // namespace fa_tune::sm90
