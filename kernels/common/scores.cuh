// How products of queries and keys become scores, before masks and maxima.
//
//     softcap   cap tanh(scale s / cap)     s' = 1 / (1 + 2^(score_scale s))
//                                           score_scale = -2 log2(e) scale / cap
//     alibi     - slope |i + diagonal - j|  s' = s - slope / softmax_scale |...|
//     hook      whatever it says            s' = score_hook(score_scale s, batch, head, i, j)
//
// The softmax multiplies s' by softmax_scale as without them.  For the soft cap that is 2 cap,
// since cap tanh(x / cap) = 2 cap s' - cap: what all scores of a row have in common does not matter
// to O, but to the log-sum-exp and to a sink.
#pragma once

#include "common/constants.cuh"
#include "common/problem.cuh"
#include "common/score_params.cuh"
#include "common/tanh.cuh"
#include "ptx/ex2.cuh"
#include "ptx/min_nan.cuh"

#ifdef FA_TUNE_SCORE_HOOK
// In front of this: float score_hook(float score, int batch, int head, int query, int key).
#define FA_TUNE_HOOKED(...) ::score_hook(__VA_ARGS__)
#else
#define FA_TUNE_HOOKED(score, ...) (score)
#endif

namespace fa_tune {

// Of one head.
template <WorkloadTraits TRAITS>
struct ScoreMap {
    float slope;  // over softmax_scale
    int batch, head;

    template <class Params>
    __device__ __forceinline__ static ScoreMap of(const Params& p, int batch, int head) {
        ScoreMap map{0.f, batch, head};
        if constexpr (TRAITS.alibi) {
            const float* slopes = p.score.alibi_slopes + batch * p.score.alibi_batch_stride;
            map.slope = slopes[head] / p.softmax_scale;
        }
        return map;
    }

    // A thread's part of an accumulator, of queries `row` and row + 8 and two keys, the first of
    // them column + `offset`.
    template <class Params>
    __device__ __forceinline__ void change(float (&s)[4], int row, int column, int offset,
                                           const Params& p) const {
        if constexpr (TRAITS.softcap) {
            cap(s, p.score.score_scale);
        } else if constexpr (TRAITS.hook) {
#pragma unroll
            for (int i = 0; i < 4; ++i) s[i] *= p.score.score_scale;
        }
        if constexpr (TRAITS.alibi) {
            // Of (row, column); what the others have more is a constant times the slope.
            const float bias = slope * static_cast<float>(row + p.score.alibi_diagonal - column);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int further = i / 2 * 8 - offset - i % 2;
                s[i] -= fabsf(fmaf(slope, static_cast<float>(further), bias));
            }
        }
        if constexpr (TRAITS.hook) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                s[i] = FA_TUNE_HOOKED(s[i], batch, head, row + i / 2 * 8, column + offset + i % 2);
            }
        }
    }

  private:
    // Four reciprocals are one and nine products, since exponentials take the same unit.  Beyond
    // 2^kMost a quotient is as good as 0, and the product of four is a number.
    __device__ __forceinline__ static void cap(float (&s)[4], float scale) {
        const float a0 = one_and_power(s[0] * scale), a1 = one_and_power(s[1] * scale);
        const float a2 = one_and_power(s[2] * scale), a3 = one_and_power(s[3] * scale);
        const float a01 = a0 * a1, a23 = a2 * a3;
        const float inverse = 1.f / (a01 * a23);
        const float inverse01 = inverse * a23, inverse23 = inverse * a01;
        s[0] = inverse01 * a1;
        s[1] = inverse01 * a0;
        s[2] = inverse23 * a3;
        s[3] = inverse23 * a2;
    }

    static constexpr float kMost = 30.f;

    __device__ __forceinline__ static float one_and_power(float x) {
        return 1.f + ptx::ex2_approx(ptx::min_nan(x, kMost));
    }
};

// What the softmax has more in all scores of a row.
template <WorkloadTraits TRAITS, class Params>
__device__ __forceinline__ float score_shift(const Params& p) {
    return TRAITS.softcap ? 0.5f * p.softmax_scale : 0.f;
}

// The exponent, to base 2, of a head's sink, as the softmax has those of scores.
template <WorkloadTraits TRAITS, class Params>
__device__ __forceinline__ float sink_exponent(const Params& p, int head) {
    if constexpr (!TRAITS.sink) return 0.f;
    return (p.score.sink[head] + score_shift<TRAITS>(p)) * kLog2E;
}

// A sink joins `sum`, a row's sum of 2^(c s - m): m and the sum are replaced.  Returns what the
// row of O must be multiplied with for the new m.
__device__ __forceinline__ float add_sink(float sink, float& m, float& sum) {
    const float top = fmaxf(m, sink);
    const float a = ptx::ex2_approx(m - top);
    sum = fmaf(sum, a, ptx::ex2_approx(sink - top));
    m = top;
    return a;
}

}  // namespace fa_tune
