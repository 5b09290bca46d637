// How products of queries and keys become scores, before masks and maxima.
//
//     softcap   cap tanh(scale s / cap)     s' = 1 / (1 + 2^(score_scale s))
//                                           score_scale = -2 log2(e) scale / cap
//     alibi     - slope |i + diagonal - j|  s' = s - slope / softmax_scale |...|
//     hook      whatever it says            s' = score_hook(score_scale s, batch, head, i, j)
//
// The softmax multiplies s' by softmax_scale as without them.  For the soft cap that is 2 cap, since
// cap tanh(x / cap) = 2 cap s' - cap: what all scores of a row have in common does not matter to
// O, but to the log-sum-exp and to a sink.
#pragma once

#include "common/constants.cuh"
#include "common/problem.cuh"
#include "common/score_params.cuh"
#include "common/tanh.cuh"
#include "ptx/ex2.cuh"

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

    // The score of query `row` and key `column`.
    template <class Params>
    __device__ __forceinline__ float score(float s, int row, int column, const Params& p) const {
        if constexpr (TRAITS.softcap) {
            s = 1.f / (1.f + ptx::ex2_approx(s * p.score.score_scale));
        } else if constexpr (TRAITS.hook) {
            s *= p.score.score_scale;
        }
        if constexpr (TRAITS.alibi) {
            const int distance = row + p.score.alibi_diagonal - column;
            s = fmaf(-slope, fabsf(static_cast<float>(distance)), s);
        }
        if constexpr (TRAITS.hook) s = FA_TUNE_HOOKED(s, batch, head, row, column);
        return s;
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
