// How products of queries and keys become scores, before masks and maxima.
//
//     softcap   cap tanh(scale s / cap)     s' = 1 / (1 + 2^(score_scale s))
//                                           score_scale = -2 log2(e) scale / cap
//     alibi     - slope |i + diagonal - j|  s' = s - slope / softmax_scale |...|
//     hook      whatever it says            s' = score_hook(score_scale s, batch, head, i, j), or
//                                           as common/score_hook.cuh says
//
// The softmax multiplies s' by softmax_scale as without them.  For the soft cap that is 2 cap,
// since cap tanh(x / cap) = 2 cap s' - cap: what all scores of a row have in common does not matter
// to O, but to the log-sum-exp and to a sink.
#pragma once

#include "common/constants.cuh"
#include "common/problem.cuh"
#include "common/score_hook.cuh"
#include "common/score_params.cuh"
#include "common/tanh.cuh"
#include "ptx/ex2.cuh"

namespace fa_tune {

// How a hook is called: with four scores, whichever of its forms it has.
struct NoScoreHook {
    static constexpr bool kSharesScores = false;
    __device__ static constexpr float unit() { return 1.f; }
    __device__ static constexpr float origin() { return 0.f; }
    __device__ __forceinline__ static void four(float (&)[4], float, const ScorePlaces&) {}
};

#if defined(FA_TUNE_SCORE_HOOK_BY_FOUR)
template <class Hook>
struct CalledHook {
    // NaN of one score may become that of others.
    static constexpr bool kSharesScores = true;
    __device__ static constexpr float unit() {
        if constexpr (requires { Hook::unit; }) {
            static_assert(Hook::unit > 0, "the unit of a score hook must be positive");
            return Hook::unit;
        }
        return 1.f;
    }
    __device__ static constexpr float origin() {
        if constexpr (requires { Hook::origin; }) return Hook::origin;
        return 0.f;
    }

    __device__ __forceinline__ static void four(float (&s)[4], float scale, const ScorePlaces& at) {
        Hook::four(s, scale, at);
    }
};
using ScoreHook = CalledHook<::score_hook>;
#elif defined(FA_TUNE_SCORE_HOOK)
struct ScoreHook : NoScoreHook {
    __device__ __forceinline__ static void four(float (&s)[4], float scale, const ScorePlaces& at) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            s[i] = ::score_hook(s[i] * scale, at.batch, at.head, at.query(i), at.key(i));
        }
    }
};
#else
using ScoreHook = NoScoreHook;
#endif

// Whether scores that a mask hides must go before they change as well: where neighbours share a
// reciprocal NaN there would be theirs.
template <WorkloadTraits TRAITS>
__device__ constexpr bool masks_before_change() {
    return TRAITS.softcap || (TRAITS.hook && ScoreHook::kSharesScores);
}

// What the softmax multiplies scores with.
template <WorkloadTraits TRAITS, class Params>
__device__ __forceinline__ float softmax_scale(const Params& p) {
    if constexpr (TRAITS.hook && ScoreHook::unit() != 1.f)
        return p.softmax_scale * ScoreHook::unit();
    return p.softmax_scale;
}

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

    // A thread's part of neighbouring accumulators, of queries `row` and row + 8 and of two keys
    // each, the first of them `column`.
    template <int kFragments, class Params>
    __device__ __forceinline__ void change(float (&s)[kFragments][4], int row, int column,
                                           const int& alibi_diagonal, const Params& p) const {
        if constexpr (TRAITS.softcap) {
            by_four(s, [&](float (&four)[4], int, int) {
                one_over_one_and_power(four, p.score.score_scale);
            });
        }
        if constexpr (TRAITS.alibi) {
#pragma unroll
            for (int n = 0; n < kFragments; ++n) {
                subtract_distances(s[n], row, column, 8 * n, alibi_diagonal, p);
            }
        }
        if constexpr (TRAITS.hook) {
            const float scale = TRAITS.alibi ? 1.f : p.score.score_scale;
            by_four(s, [&](float (&four)[4], int further_row, int further_column) {
                ScoreHook::four(four, scale,
                                {batch, head, row + further_row, column + further_column});
            });
        }
    }

  private:
    // Four scores at a time, of one row each, which a NaN among them makes NaN anyway.
    template <int kFragments, class Change>
    __device__ __forceinline__ static void by_four(float (&s)[kFragments][4], Change change) {
        static_assert(kFragments % 2 == 0, "four scores of a row are of two fragments");
#pragma unroll
        for (int n = 0; n < kFragments; n += 2) {
#pragma unroll
            for (int i = 0; i < 4; i += 2) {
                float four[4] = {s[n][i], s[n][i + 1], s[n + 1][i], s[n + 1][i + 1]};
                change(four, 4 * i, 8 * n);
                s[n][i] = four[0];
                s[n][i + 1] = four[1];
                s[n + 1][i] = four[2];
                s[n + 1][i + 1] = four[3];
            }
        }
    }

    // Of the accumulator whose first key is column + `offset`.
    template <class Params>
    __device__ __forceinline__ void subtract_distances(float (&s)[4], int row, int column,
                                                       int offset, const int& alibi_diagonal,
                                                       const Params& p) const {
        if constexpr (TRAITS.hook && !TRAITS.softcap) {
#pragma unroll
            for (int i = 0; i < 4; ++i) s[i] *= p.score.score_scale;
        }
        // Of (row, column); what the others have more is a constant times the slope, whose sign
        // stays, since distances have none.
        const float bias = slope * static_cast<float>(row + alibi_diagonal - column);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int further = i / 2 * 8 - offset - i % 2;
            s[i] -= copysignf(fmaf(slope, static_cast<float>(further), bias), slope);
        }
    }
};

// What the softmax has more in all scores of a row.
template <WorkloadTraits TRAITS, class Params>
__device__ __forceinline__ float score_shift(const Params& p) {
    if constexpr (TRAITS.hook) return -ScoreHook::origin();
    return TRAITS.softcap ? 0.5f * p.softmax_scale : 0.f;
}

template <WorkloadTraits TRAITS>
__device__ constexpr bool has_score_shift() {
    return TRAITS.softcap || (TRAITS.hook && ScoreHook::origin() != 0.f);
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
