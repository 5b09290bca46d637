// The running softmax of one warp's rows, base 2.
//
// Scores s arrive block by block.  With c = scale * log2(e), m the running maximum of s and
// l the running sum, a block does
//
//     m' = max(m, max_j s_j)          a = 2^(c (m - m'))
//     p_j = 2^(c s_j - c m')          l' = a l + sum_j p_j          O' = a O + P V
//
// and the result is O / l.  A lane holds 2 rows (l/4 and l/4 + 8) of each 16-row tile; the 4
// lanes of a quad share a row.  Only the maximum crosses lanes in a block; the sum crosses
// once, at the end.
//
// kOptimized: the first block neither rescales O and l (both are empty) nor computes a, and
// c s - c m' is one fused multiply-add per score.  Otherwise every block does the full work,
// and scores are scaled, shifted and multiplied by log2(e) in separate steps.
#pragma once

#include "ptx/math.cuh"

namespace tile {

constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;
__device__ __forceinline__ float negative_infinity() { return __int_as_float(0xff800000); }

__device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// kTilesM 16-row tiles of kTilesS (scores) and kTilesO (outputs) 8-column tiles.
// kMayBeEmpty: a row can have nothing to attend to, so its maximum may stay -inf.
template <int kTilesM, int kTilesS, int kTilesO, bool kOptimized, bool kMayBeEmpty>
struct OnlineSoftmax {
    float row_max[kTilesM][2];
    float row_sum[kTilesM][2];  // this lane's share
    float scale;                // of the scores
    float scale_log2;           // scale * log2(e)

    __device__ __forceinline__ explicit OnlineSoftmax(float softmax_scale)
        : scale(softmax_scale), scale_log2(softmax_scale * kLog2E) {
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                row_max[m][half] = negative_infinity();
                row_sum[m][half] = 0.f;
            }
        }
    }

    // Scores to probabilities in place; rescales `o` and the sums by how far the maxima moved.
    // `first`: this is the first block, and `o` and the sums are still zero.
    __device__ __forceinline__ void block(float (&s)[kTilesM][kTilesS][4],
                                          float (&o)[kTilesM][kTilesO][4], bool first) {
        if constexpr (!kOptimized) scale_scores(s);
        float old_max[kTilesM][2];
        float shift[kTilesM][2];  // what is subtracted: the new maximum, or 0 for an empty row
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float highest = s[m][0][2 * half];
#pragma unroll
                for (int n = 0; n < kTilesS; ++n) {
                    highest = fmaxf(highest, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
                }
                old_max[m][half] = row_max[m][half];
                const float new_max = fmaxf(old_max[m][half], quad_max(highest));
                row_max[m][half] = new_max;
                // 2^(-inf - -inf) would be NaN; an empty row's terms must be 2^(-inf) = 0.
                shift[m][half] = kMayBeEmpty && new_max == negative_infinity() ? 0.f : new_max;
            }
        }
        // A branch rather than code of its own for the first block: twice the code costs
        // registers that the 32-row configs do not have.
        if (!kOptimized || !first) rescale(o, old_max, shift);
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float shift_log2 = shift[m][half] * scale_log2;
                float sum = 0.f;
#pragma unroll
                for (int n = 0; n < kTilesS; ++n) {
#pragma unroll
                    for (int i = 2 * half; i < 2 * half + 2; ++i) {
                        // __fadd_rn and __fmul_rn are never fused.
                        const float exponent =
                            kOptimized ? fmaf(s[m][n][i], scale_log2, -shift_log2)
                                       : __fmul_rn(__fadd_rn(s[m][n][i], -shift[m][half]), kLog2E);
                        s[m][n][i] = ptx::ex2_approx(exponent);
                        sum += s[m][n][i];
                    }
                }
                row_sum[m][half] += sum;
            }
        }
    }

    // Divide O by the row sums.  An empty row gives 0, its log-sum-exp is -inf; NaN stays NaN.
    __device__ __forceinline__ void finish(float (&o)[kTilesM][kTilesO][4],
                                           float (&log_sum_exp)[kTilesM][2]) {
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float sum = quad_sum(row_sum[m][half]);
                const float inverse = kMayBeEmpty && sum == 0.f ? 0.f : 1.f / sum;
                const float scaled_max = kOptimized ? row_max[m][half] * scale : row_max[m][half];
                log_sum_exp[m][half] = kMayBeEmpty && sum == 0.f
                                           ? negative_infinity()
                                           : scaled_max + ptx::lg2_approx(sum) * kLn2;
#pragma unroll
                for (int n = 0; n < kTilesO; ++n) {
                    o[m][n][2 * half] *= inverse;
                    o[m][n][2 * half + 1] *= inverse;
                }
            }
        }
    }

  private:
    __device__ __forceinline__ void scale_scores(float (&s)[kTilesM][kTilesS][4]) {
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
            for (int n = 0; n < kTilesS; ++n) {
#pragma unroll
                for (int i = 0; i < 4; ++i) s[m][n][i] *= scale;
            }
        }
    }

    __device__ __forceinline__ void rescale(float (&o)[kTilesM][kTilesO][4],
                                            const float (&old_max)[kTilesM][2],
                                            const float (&shift)[kTilesM][2]) {
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float moved = old_max[m][half] - shift[m][half];
                const float a = ptx::ex2_approx(moved * (kOptimized ? scale_log2 : kLog2E));
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

}  // namespace tile
