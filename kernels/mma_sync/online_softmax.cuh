// The running softmax of one warp's rows, base 2.
//
// Scores s arrive block by block.  With c = scale * log2(e), m the running maximum of s and
// l the running sum, a block does
//
//     m' = max(m, max_j s_j)          a = 2^(c (m - m'))
//     p_j = 2^(c s_j - c m')          l' = a l + sum_j p_j          O' = a O + P V
//
// and the result is O / l.  A lane holds 2 rows (l/4 and l/4 + 8) of each 16-row tile; the 4
// lanes of a quad share a row.  The sum crosses lanes once, at the end.
//
// kOptimized: the first block neither rescales O and l (both are empty) nor computes a, and
// c s - c m' is one fused multiply-add per score.  Otherwise every block does the full work,
// and scores are scaled, shifted and multiplied by log2(e) in separate steps.
//
// The fused multiply-add knows c s exactly, but c m is rounded: the exponent of the maximum itself
// is off by up to half a unit of c m's last place, upwards or downwards.  Where c m is large enough
// for that to show, the scores are multiplied by c first: rounded alike, the maximum's exponent is
// exact and no other is above it.
//
// kThreshold > 0: m need not be the maximum, only near enough to it.  While no score of the
// warp's rows has c (s - m) > kThreshold, m stays: P then reaches 2^kThreshold, which cancels
// in O / l.  After the first few blocks that is nearly always so, and neither the rescaling
// nor a maximum across lanes is left in the loop, only a vote.
#pragma once

#include "common/constants.cuh"
#include "common/scores.cuh"
#include "ptx/ex2.cuh"
#include "ptx/lg2.cuh"

namespace fa_tune::mma_sync {

// kTilesM 16-row tiles of kTilesS (scores) and kTilesO (outputs) 8-column tiles.
// A row may have nothing to attend to, so that its maximum stays -inf.
template <typename Elem, int kTilesM, int kTilesS, int kTilesO, bool kOptimized, int kThreshold>
struct OnlineSoftmax {
    using Scores = float[kTilesM][kTilesS][4];
    using Outputs = float[kTilesM][kTilesO][4];
    using Probabilities = unsigned[kTilesM][kTilesS / 2][4];  // A fragments, one per k-tile

    float row_max[kTilesM][2];
    float row_sum[kTilesM][2];    // this lane's share, without the block under way
    float block_sum[kTilesM][2];  // that of the block: a long row's sum would lose small terms
    float shift[kTilesM][2];      // subtracted from c s, or from s if not kOptimized
    float scale;                  // of the scores
    float scale_log2;             // scale * log2(e)
    bool large;                   // of this block: the rounding of c m shows in a row of the warp

    __device__ __forceinline__ explicit OnlineSoftmax(float softmax_scale)
        : scale(softmax_scale), scale_log2(softmax_scale * kLog2E) {
        restart();
    }

    // As before the first block.
    __device__ __forceinline__ void restart() {
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                row_max[m][half] = negative_infinity();
                row_sum[m][half] = block_sum[m][half] = 0.f;
                shift[m][half] = 0.f;
            }
        }
    }

    // Take note of a block's maxima; rescales `o` and the sums by how far m moved.
    // `first`: this is the first block, and `o` and the sums are still zero.
    __device__ __forceinline__ void advance(Scores& s, Outputs& o, bool first) {
        if constexpr (!kOptimized) scale_scores(s, scale);
        add_block_sums();
        float highest[kTilesM][2];  // of this lane's columns
        bool far = false;
        large = false;
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float x = s[m][0][2 * half];
#pragma unroll
                for (int n = 0; n < kTilesS; ++n) {
                    x = fmaxf(x, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
                }
                highest[m][half] = x;
                // m = -inf, before a row's first score, is far from all but -inf.
                far |= x * scale_log2 > row_max[m][half] * scale_log2 + kThreshold;
                if (kOptimized && kThreshold > 0) far |= fabsf(shift[m][half]) >= kLargeMax;
            }
        }
        if constexpr (kThreshold > 0) {
            if (!__any_sync(0xffffffffu, far)) return;
        }
        float old_max[kTilesM][2];
        float most = 0.f;
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                old_max[m][half] = row_max[m][half];
                const float now = fmaxf(old_max[m][half], quad_max(highest[m][half]));
                row_max[m][half] = now;
                // 2^(-inf - -inf) would be NaN; an empty row's terms must be 2^(-inf) = 0.
                shift[m][half] =
                    (now == negative_infinity() ? 0.f : now) * (kOptimized ? scale_log2 : 1.f);
                most = fmaxf(most, fabsf(shift[m][half]));
            }
        }
        // A branch rather than code of its own for the first block: twice the code costs
        // registers that the 32-row configs do not have.
        if (!kOptimized || kThreshold > 0 || !first) rescale(o, old_max);
        if constexpr (kOptimized) {
            large = __any_sync(0xffffffffu, most >= kLargeMax);
            if (large) scale_scores(s, scale_log2);
        }
    }

    // P of k-tile `t`: the scores of tiles 2 t and 2 t + 1, rounded to the element type.  The
    // accumulator layout of two neighbouring 8-column tiles is the A layout of one k-tile.
    __device__ __forceinline__ void exponentiate(const Scores& s, Probabilities& p, int t) {
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
            for (int x = 0; x < 2; ++x) exponentiate_tile(s, p, m, 2 * t + x);
        }
    }

    __device__ __forceinline__ float subtrahend(int m, int half) const { return shift[m][half]; }

    // The share of one 16 x 8 tile in it.
    __device__ __forceinline__ void exponentiate_tile(const Scores& s, Probabilities& p, int m,
                                                      int n) {
        float e[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            // __fadd_rn and __fmul_rn are never fused.
            const float exponent =
                kOptimized ? fmaf(s[m][n][i], large ? 1.f : scale_log2, -subtrahend(m, i / 2))
                           : __fmul_rn(__fadd_rn(s[m][n][i], -shift[m][i / 2]), kLog2E);
            e[i] = ptx::ex2_approx(exponent);
            block_sum[m][i / 2] += e[i];
        }
        p[m][n / 2][n % 2 * 2] = Elem::pack(e[0], e[1]);
        p[m][n / 2][n % 2 * 2 + 1] = Elem::pack(e[2], e[3]);
    }

    // Divide O by the row sums.  An empty row gives 0, its log-sum-exp is -inf; NaN stays NaN.
    // `sink`: with kSink, the exponent of a score that every row has besides.
    template <bool kSink>
    __device__ __forceinline__ void finish(Outputs& o, float (&log_sum_exp)[kTilesM][2],
                                           float sink) {
        add_block_sums();
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float sum = quad_sum(row_sum[m][half]);
                if constexpr (kSink) {
                    float top = sum == 0.f ? -3e38f : shift[m][half] * (kOptimized ? 1.f : kLog2E);
                    float total = sum;
                    const float a = add_sink(sink, top, total);
                    log_sum_exp[m][half] =
                        total == 0.f ? negative_infinity() : (top + ptx::lg2_approx(total)) * kLn2;
                    multiply(o, m, half, sum == 0.f ? 0.f : a / total);
                    continue;
                }
                const float inverse = sum == 0.f ? 0.f : 1.f / sum;
                const float scaled_max = kOptimized ? row_max[m][half] * scale : row_max[m][half];
                log_sum_exp[m][half] =
                    sum == 0.f ? negative_infinity() : scaled_max + ptx::lg2_approx(sum) * kLn2;
#pragma unroll
                for (int n = 0; n < kTilesO; ++n) {
                    // Not 0 times O: weights of 0 leave NaN in it where V has NaN.
                    o[m][n][2 * half] = sum == 0.f ? 0.f : o[m][n][2 * half] * inverse;
                    o[m][n][2 * half + 1] = sum == 0.f ? 0.f : o[m][n][2 * half + 1] * inverse;
                }
            }
        }
    }

  private:
    // A row of O; 0 times NaN is 0 here.
    __device__ __forceinline__ static void multiply(Outputs& o, int m, int half, float factor) {
#pragma unroll
        for (int n = 0; n < kTilesO; ++n) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                float& x = o[m][n][2 * half + i];
                x = factor == 0.f ? 0.f : x * factor;
            }
        }
    }

    __device__ __forceinline__ void add_block_sums() {
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                row_sum[m][half] += block_sum[m][half];
                block_sum[m][half] = 0.f;
            }
        }
    }

    __device__ __forceinline__ static void scale_scores(Scores& s, float factor) {
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
            for (int n = 0; n < kTilesS; ++n) {
#pragma unroll
                for (int i = 0; i < 4; ++i) s[m][n][i] = __fmul_rn(s[m][n][i], factor);
            }
        }
    }

    __device__ __forceinline__ void rescale(Outputs& o, const float (&old_max)[kTilesM][2]) {
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float a = ptx::ex2_approx(
                    kOptimized ? __fmul_rn(old_max[m][half], scale_log2) - shift[m][half]
                               : (old_max[m][half] - shift[m][half]) * kLog2E);
                row_sum[m][half] *= a;
#pragma unroll
                for (int n = 0; n < kTilesO; ++n) {
                    o[m][n][2 * half] *= a;
                    o[m][n][2 * half + 1] *= a;
                }
            }
        }
    }
};

}  // namespace fa_tune::mma_sync
