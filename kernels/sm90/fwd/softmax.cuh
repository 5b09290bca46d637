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

#include "common/constants.cuh"
#include "ptx/cvt.cuh"
#include "ptx/ex2.cuh"
#include "ptx/lg2.cuh"
#include "sm90/fwd/config.cuh"

namespace fa_tune::sm90 {

template <Sm90Config CFG, int kScores, bool kMayBeEmpty>
struct Softmax {
    static constexpr float kLowest = -3e38f;
    // How much a maximum may lag behind (in powers of two) where it is kept.
    static constexpr float kThreshold = 8.f;
    // What a thread's share of a row's sum over one block may come to with a stale maximum.  All
    // its scores together give less than 2^7 while none is above m.
    static constexpr float kMostOfStaleMax = 1024.f;
    static constexpr bool kKeepsMax = CFG.rescale != Rescale::EACH_BLOCK;

    float row_max[2], row_sum[2];  // m, l
    float scale_log2;              // c

    __device__ __forceinline__ void set_scale(float softmax_scale) {
        scale_log2 = softmax_scale * kLog2E;
    }

    // s becomes p, unrounded; `a` is what O must be multiplied with.
    template <bool kFirst>
    __device__ __forceinline__ void update(float (&s)[kScores], float (&a)[2]) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            float even = s[2 * i], odd = s[2 * i + 1];
#pragma unroll
            for (int j = 1; j < kScores / 4; ++j) {
                even = fmaxf(even, s[4 * j + 2 * i]);
                odd = fmaxf(odd, s[4 * j + 2 * i + 1]);
            }
            const float highest = quad_max(fmaxf(even, odd)) * scale_log2;
            float new_max = fmaxf(kFirst ? kLowest : row_max[i], highest);
            if constexpr (kKeepsMax && !kFirst) {
                if (row_max[i] - new_max >= -kThreshold) new_max = row_max[i];
            }
            if constexpr (!kFirst) a[i] = ptx::ex2_approx(row_max[i] - new_max);
            row_max[i] = new_max;
            float sum = 0.f;
#pragma unroll
            for (int j = 0; j < kScores / 4; ++j) {
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    float& x = s[4 * j + 2 * i + c];
                    x = exponential(x, i);
                    sum += x;
                }
            }
            row_sum[i] = kFirst ? sum : fmaf(row_sum[i], a[i], sum);
        }
    }

    // P of the scores, rounded and packed in order, by the m that is there; `sums` are its sums
    // over the block, halves of each row apart.  The scores stay as they are.
    template <int kSteps>
    __device__ __forceinline__ void with_stale_max(const float (&s)[kScores],
                                                   unsigned (&packed)[kSteps][4],
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
    __device__ __forceinline__ static bool overflowed(const float (&sums)[2]) {
        return __any_sync(kAllLanes, sums[0] > kMostOfStaleMax || sums[1] > kMostOfStaleMax);
    }

    // m becomes the maximum; `a` is what O must be multiplied with.
    __device__ __forceinline__ void refresh_max(const float (&s)[kScores], float (&a)[2]) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            float highest = s[2 * i];
#pragma unroll
            for (int j = 0; j < kScores / 4; ++j) {
                highest = fmaxf(highest, fmaxf(s[4 * j + 2 * i], s[4 * j + 2 * i + 1]));
            }
            const float new_max = fmaxf(row_max[i], quad_max(highest) * scale_log2);
            a[i] = ptx::ex2_approx(row_max[i] - new_max);
            row_max[i] = new_max;
            row_sum[i] *= a[i];
        }
    }

    __device__ __forceinline__ void add(const float (&sums)[2]) {
#pragma unroll
        for (int i = 0; i < 2; ++i) row_sum[i] += sums[i];
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
            const float sum = quad_sum(row_sum[i]);
            empty[i] = kMayBeEmpty && sum == 0.f;
            inverse[i] = empty[i] ? 0.f : 1.f / sum;
            log_sum_exp[i] =
                empty[i] ? negative_infinity() : (row_max[i] + ptx::lg2_approx(sum)) * kLn2;
        }
    }
};

}  // namespace fa_tune::sm90
