// Softmax over the keys, block by block, for the 64 rows of a warpgroup.  Row i of a thread
// (i = 0, 1) are the scores s[4j + 2i], s[4j + 2i + 1]; a row lies in a quad of lanes.
//
//     m' = max(m, max_j s_j)      a = 2^((m - m') c)      c = scale * log2(e)
//     p_j = 2^(s_j c - m' c)      l' = a l + sum_j p_j    O' = a O + P V
//
// A thread's l is the sum over its own columns; the quad adds them up at the end.
#pragma once

#include "ptx/math.cuh"
#include "ptx/order.cuh"
#include "ptx/soft_exp.cuh"
#include "sm90/config.cuh"

__device__ __forceinline__ float negative_infinity() { return __int_as_float(0xff800000); }

// How much an outgrown maximum may lag behind (in powers of two) with lazy rescaling.
constexpr float kLazyRescale = 8.f;

template <Sm90Config CFG, int kScores, bool kLazy, bool kMayBeEmpty>
struct Softmax {
    float row_max[2], row_sum[2];
    float scale, scale_log2;

    __device__ __forceinline__ void set_scale(float softmax_scale) {
        scale = softmax_scale;
        scale_log2 = softmax_scale * 1.4426950408889634f;
    }

    // s becomes p, unrounded; `a` is what O must be multiplied with.  kMasked: there are scores
    // of -inf; kEmpty: a row may have no others.  From kCount on they all are, and need not be set.
    template <bool kFirst, bool kMasked, bool kEmpty, int kCount = kScores>
    __device__ __forceinline__ void update(float (&s)[kScores], float (&a)[2]) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            float even = s[2 * i], odd = s[2 * i + 1];
            // Row 1 begins when row 0 has its maximum, whose exponentials then run beside it.
            if constexpr (CFG.stagger) {
                if (i == 1) even = ptx::fmax_after(even, row_max[0]);
            }
#pragma unroll
            for (int j = 1; j < kCount / 4; ++j) {
                even = fmaxf(even, s[4 * j + 2 * i]);
                odd = fmaxf(odd, s[4 * j + 2 * i + 1]);
            }
            float highest = fmaxf(even, odd);
            highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, 1));
            highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, 2));
            float new_max = kFirst ? highest : fmaxf(row_max[i], highest);
            if constexpr (kLazy && !kFirst) {
                if ((row_max[i] - new_max) * scale_log2 >= -kLazyRescale) new_max = row_max[i];
            }
            // 2^(-inf - -inf) would be NaN; a row that saw no key yet has 2^(-inf) = 0.
            const float shift = kEmpty && new_max == negative_infinity() ? 0.f : new_max;
            if constexpr (!kFirst) a[i] = ptx::ex2_approx((row_max[i] - shift) * scale_log2);
            row_max[i] = new_max;
            const float shift_log2 = shift * scale_log2;
            float sum = 0.f;
#pragma unroll
            for (int j = 0; j < kCount / 4; ++j) {
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    float& x = s[4 * j + 2 * i + c];
                    const float exponent = fmaf(x, scale_log2, -shift_log2);
                    // Spread evenly, so that neither unit waits for the other.
                    const int e = 2 * j + c;
                    const bool soft =
                        !kMasked && (e + 1) * CFG.soft_exp / 16 > e * CFG.soft_exp / 16;
                    x = soft ? ptx::soft_exp2(exponent) : ptx::ex2_approx(exponent);
                    sum += x;
                }
            }
#pragma unroll
            for (int j = kCount / 4; j < kScores / 4; ++j)
                s[4 * j + 2 * i] = s[4 * j + 2 * i + 1] = 0;
            row_sum[i] = kFirst ? sum : fmaf(row_sum[i], a[i], sum);
        }
    }

    // The rows' 1 / l, their log-sum-exp, and whether they saw no key: these have 0 and -inf.
    __device__ __forceinline__ void finish(float (&inverse)[2], float (&log_sum_exp)[2],
                                           bool (&empty)[2]) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            float sum = row_sum[i];
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            empty[i] = kMayBeEmpty && sum == 0.f;
            inverse[i] = empty[i] ? 0.f : 1.f / sum;
            log_sum_exp[i] = empty[i]
                                 ? negative_infinity()
                                 : row_max[i] * scale + ptx::lg2_approx(sum) * 0.6931471805599453f;
        }
    }
};
