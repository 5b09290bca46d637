// The running softmax of one warp's rows, base 2, without a maximum in most blocks.
//
// As in mma_sync/online_softmax.cuh m need not be the maximum of a row, only near enough to it.
// Whether it is shows in the sums: as long as no lane's share of a row's sum over one block
// exceeds 2^kThreshold, no P does either, and m stays.  The scores are gone by then, so where a
// share does, the caller multiplies Q K^T once more and takes the block's maxima first:
//
//     usual block     P = 2^(c s - c m), sums  |  accept
//     too low         P = 2^(c s - c m), sums  |  S again  |  m again  |  P, sums  |  accept
//
// Where c m is large (mma_sync/online_softmax.cuh) the maximum of every block is taken.
//
// Before a row's first score m is so low that any score outgrows it, and -inf does not.
#pragma once

#include "common/constants.cuh"
#include "common/scores.cuh"
#include "ptx/ex2.cuh"
#include "ptx/lg2.cuh"

namespace fa_tune::mma_sync {

template <typename Elem, int kTilesM, int kTilesS, int kTilesO, int kThreshold>
struct StaleMaxSoftmax {
    using Scores = float[kTilesM][kTilesS][4];
    using Outputs = float[kTilesM][kTilesO][4];
    using Probabilities = unsigned[kTilesM][kTilesS / 2][4];  // A fragments, one per k-tile

    static constexpr float kLowest = -3e38f;

    float row_sum[kTilesM][2];    // this lane's share
    float block_sum[kTilesM][2];  // of this block
    float shift[kTilesM][2];      // c m
    float scale_log2;             // c, scale * log2(e)
    bool large;                   // the rounding of c m shows in a row of the warp
    bool scaled = false;          // this block's scores have been multiplied by c

    __device__ __forceinline__ explicit StaleMaxSoftmax(float softmax_scale)
        : scale_log2(softmax_scale * kLog2E) {
        restart();
    }

    // As before the first block.
    __device__ __forceinline__ void restart() {
        large = false;
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                row_sum[m][half] = 0.f;
                shift[m][half] = kLowest;
            }
        }
    }

    // m becomes the maximum of the scores; rescales `o` and the sums, and, where m is large, the
    // scores.
    __device__ __forceinline__ void refresh_max(Scores& s, Outputs& o) {
        bool any = false;
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float x = s[m][0][2 * half];
#pragma unroll
                for (int n = 0; n < kTilesS; ++n) {
                    x = fmaxf(x, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
                }
                const float old = shift[m][half];
                shift[m][half] = fmaxf(old, __fmul_rn(quad_max(x), scale_log2));
                any |= fabsf(shift[m][half]) >= kLargeMax && shift[m][half] != kLowest;
                const float a = ptx::ex2_approx(old - shift[m][half]);
                row_sum[m][half] *= a;
#pragma unroll
                for (int n = 0; n < kTilesO; ++n) {
                    o[m][n][2 * half] *= a;
                    o[m][n][2 * half + 1] *= a;
                }
            }
        }
        large = __any_sync(0xffffffffu, any);
        scaled = large;
        if (large) {
#pragma unroll
            for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
                for (int n = 0; n < kTilesS; ++n) {
#pragma unroll
                    for (int i = 0; i < 4; ++i) s[m][n][i] = __fmul_rn(s[m][n][i], scale_log2);
                }
            }
        }
    }

    __device__ __forceinline__ void begin_block() {
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) block_sum[m][0] = block_sum[m][1] = 0.f;
    }

    // P of k-tile `t`: the scores of tiles 2 t and 2 t + 1, rounded to the element type.
    __device__ __forceinline__ void exponentiate(const Scores& s, Probabilities& p, int t) {
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
            for (int x = 0; x < 2; ++x) exponentiate_tile(s, p, m, 2 * t + x);
        }
    }

    __device__ __forceinline__ void exponentiate_tile(const Scores& s, Probabilities& p, int m,
                                                      int n) {
        float e[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float exponent = fmaf(s[m][n][i], scaled ? 1.f : scale_log2, -shift[m][i / 2]);
            e[i] = ptx::ex2_approx(exponent);
            block_sum[m][i / 2] += e[i];
        }
        p[m][n / 2][n % 2 * 2] = Elem::pack(e[0], e[1]);
        p[m][n / 2][n % 2 * 2 + 1] = Elem::pack(e[2], e[3]);
    }

    // Whether a score of the block may be too far above m, for any of the warp's rows.
    __device__ __forceinline__ bool overflowed() const {
        float most = block_sum[0][0];
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) most = fmaxf(most, block_sum[m][half]);
        }
        return __any_sync(0xffffffffu, large || most > static_cast<float>(1 << kThreshold));
    }

    __device__ __forceinline__ void accept() {
        scaled = false;
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) row_sum[m][half] += block_sum[m][half];
        }
    }

    // Divide O by the row sums.  An empty row gives 0, its log-sum-exp is -inf; NaN stays NaN.
    // `sink`: with kSink, the exponent of a score that every row has besides.
    template <bool kSink>
    __device__ __forceinline__ void finish(Outputs& o, float (&log_sum_exp)[kTilesM][2],
                                           float sink) {
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float sum = quad_sum(row_sum[m][half]);
                float inverse = 1.f / sum;
                const bool empty = sum == 0.f;
                if constexpr (kSink) {
                    const float a = add_sink(sink, shift[m][half], sum);
                    inverse = a / sum;
                }
                log_sum_exp[m][half] = sum == 0.f ? negative_infinity()
                                                  : (shift[m][half] + ptx::lg2_approx(sum)) * kLn2;
#pragma unroll
                for (int n = 0; n < kTilesO; ++n) {
                    // Not 0 times O: weights of 0 leave NaN in it where V has NaN.
                    o[m][n][2 * half] = empty ? 0.f : o[m][n][2 * half] * inverse;
                    o[m][n][2 * half + 1] = empty ? 0.f : o[m][n][2 * half + 1] * inverse;
                }
            }
        }
    }
};

}  // namespace fa_tune::mma_sync
