// Softmax over the keys, block by block, for the 64 rows of a warpgroup.  Row i of a thread
// (i = 0, 1) are the scores s[4j + 2i], s[4j + 2i + 1]; a row lies in a quad of lanes.
//
//     m' = max(m, max_j c s_j)    a = 2^(m - m')          c = scale * log2(e)
//     p_j = 2^(c s_j - m')        l' = a l + sum_j p_j    O' = a O + P V
//
// A thread's l is the sum over its own columns; the quad adds them up at the end.  m need not be
// the maximum, only near enough to it that no p is too large.  Before a row's first score it is so
// low that any score outgrows it, and -inf does not.
#pragma once

#include "ptx/convert.cuh"
#include "ptx/math.cuh"
#include "ptx/order.cuh"
#include "sm90/config.cuh"

__device__ __forceinline__ float negative_infinity() { return __int_as_float(0xff800000); }

// How much an outgrown maximum may lag behind (in powers of two) with lazy rescaling.
constexpr float kLazyRescale = 8.f;

template <Sm90Config CFG, int kScores, bool kMayBeEmpty>
struct Softmax {
    static constexpr float kLowest = -3e38f;
    // What a thread's share of a row's sum over one block may come to without a look at the
    // maximum.  All its scores together give less than 2^7 while none is above m.
    static constexpr float kTrusted = 1024.f;
    static constexpr bool kLazy = CFG.rescale == Rescale::LAZY || CFG.rescale == Rescale::TRUST;

    float row_max[2], row_sum[2];  // m, l
    float scale_log2;              // c

    __device__ __forceinline__ void set_scale(float softmax_scale) {
        scale_log2 = softmax_scale * 1.4426950408889634f;
    }

    // s becomes p, unrounded; `a` is what O must be multiplied with.  From kCount on all scores
    // are -inf, and need not be set.
    template <bool kFirst, int kCount = kScores>
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
            float new_max = fmaxf(kFirst ? kLowest : row_max[i], quad_max(fmaxf(even, odd)));
            if constexpr (kLazy && !kFirst) {
                if (row_max[i] - new_max >= -kLazyRescale) new_max = row_max[i];
            }
            if constexpr (!kFirst) a[i] = ptx::ex2_approx(row_max[i] - new_max);
            row_max[i] = new_max;
            float sum = 0.f;
#pragma unroll
            for (int j = 0; j < kCount / 4; ++j) {
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    float& x = s[4 * j + 2 * i + c];
                    x = exponential(x, i);
                    sum += x;
                }
            }
#pragma unroll
            for (int j = kCount / 4; j < kScores / 4; ++j)
                s[4 * j + 2 * i] = s[4 * j + 2 * i + 1] = 0;
            row_sum[i] = kFirst ? sum : fmaf(row_sum[i], a[i], sum);
        }
    }

    // P of the scores, rounded and packed in order, by the m that is there; `sums` are its sums
    // over the block, halves of each row apart.  The scores stay as they are.
    template <int kSteps>
    __device__ __forceinline__ void trust(const float (&s)[kScores], unsigned (&packed)[kSteps][4],
                                          float (&sums)[2]) const {
        float part[2][2];
#pragma unroll
        for (int j = 0; j < kScores / 4; ++j) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float even = exponential(s[4 * j + 2 * i], i);
                const float odd = exponential(s[4 * j + 2 * i + 1], i);
                part[i][0] = j == 0 ? even : part[i][0] + even;
                part[i][1] = j == 0 ? odd : part[i][1] + odd;
                packed[j / 2][j % 2 * 2 + i] = round(even, odd);
            }
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) sums[i] = part[i][0] + part[i][1];
    }

    // Whether a score may be too far above m, for any row of the warp.  NaN is not: its row has
    // NaN whatever m is.
    __device__ __forceinline__ static bool outgrown(const float (&sums)[2]) {
        return __any_sync(0xffffffffu, sums[0] > kTrusted || sums[1] > kTrusted);
    }

    // m becomes the maximum; `a` is what O must be multiplied with.
    __device__ __forceinline__ void raise(const float (&s)[kScores], float (&a)[2]) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            float highest = s[2 * i];
#pragma unroll
            for (int j = 0; j < kScores / 4; ++j) {
                highest = fmaxf(highest, fmaxf(s[4 * j + 2 * i], s[4 * j + 2 * i + 1]));
            }
            const float new_max = fmaxf(row_max[i], quad_max(highest));
            a[i] = ptx::ex2_approx(row_max[i] - new_max);
            row_max[i] = new_max;
            row_sum[i] *= a[i];
        }
    }

    __device__ __forceinline__ void add(const float (&sums)[2]) {
#pragma unroll
        for (int i = 0; i < 2; ++i) row_sum[i] += sums[i];
    }

    // c times the largest of a row's scores.
    __device__ __forceinline__ float quad_max(float highest) const {
        highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, 1));
        highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, 2));
        return highest * scale_log2;
    }

    // Of score x of row i.
    __device__ __forceinline__ float exponential(float x, int i) const {
        return ptx::ex2_approx(fmaf(x, scale_log2, -row_max[i]));
    }

    __device__ __forceinline__ static unsigned round(float lower, float upper) {
        return CFG.dtype == DType::BF16 ? ptx::cvt_rn_bf16x2_f32(lower, upper)
                                        : ptx::cvt_rn_f16x2_f32(lower, upper);
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
            log_sum_exp[i] = empty[i] ? negative_infinity()
                                      : (row_max[i] + ptx::lg2_approx(sum)) * 0.6931471805599453f;
        }
    }
};
