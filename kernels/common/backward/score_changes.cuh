// Scores that change before the softmax (common/scores.cuh), and what that makes of gradients.
//
//     softcap   s' = 1 / (1 + 2^(score_scale s))   of which softmax_scale is 2 cap:
//               cap tanh(s scale / cap) = 2 cap s' - cap, whose slope is 4 s' (1 - s') scale
//     alibi     - slope |i + diagonal - j|          whose slope is 1
//     hook      s' = score_hook(score_scale s, ...) whose slope is score_hook_derivative(the same)
//
// The term - cap is in the log-sum-exp of the workspace.
#pragma once

#include "common/backward/params.cuh"
#include "common/scores.cuh"

namespace fa_tune {

// Whether scores have slopes that products of weights and gradients are multiplied with.
template <WorkloadTraits TRAITS>
__device__ constexpr bool has_slopes() {
    return TRAITS.softcap || TRAITS.hook;
}

// What gradients of Q and K have as a factor.
template <WorkloadTraits TRAITS>
__device__ __forceinline__ float gradient_scale(const BackwardParams& p) {
    constexpr float kQuarterLn2 = 0.17328679513998633f;
    if constexpr (TRAITS.hook) return p.score.score_scale;
    if constexpr (!TRAITS.softcap) return p.softmax_scale;
    return -kQuarterLn2 * p.score.score_scale * p.softmax_scale;
}

__device__ __forceinline__ float logistic_of_product(float product, float score_scale) {
    return 1.f / (1.f + ptx::ex2_approx(product * score_scale));
}

// Of s'.
__device__ __forceinline__ float softcap_slope(float logistic) {
    return logistic * fmaf(-4.f, logistic, 4.f);
}

// Products become s', with the slope of each.
template <int kScores>
__device__ __forceinline__ void cap_products(float (&s)[kScores], float (&slopes)[kScores],
                                             float score_scale) {
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
        s[i] = logistic_of_product(s[i], score_scale);
        slopes[i] = softcap_slope(s[i]);
    }
}

// Of which batch element and head of queries scores are; what no hook asks for is not there.
struct HookedHead {
    int batch, head;
};

// The product of a query and a key becomes what a hook makes of it; returns the hook's slope.  The
// bound leaves rows that the tensor does not have, of which LSE is infinite, without a weight.
__device__ __forceinline__ float hook_product(float& s, float score_scale, const HookedHead& of,
                                              int query, int key) {
#if defined(FA_TUNE_SCORE_HOOK)
    constexpr float kMost = 1e38f;
    const float score = s * score_scale;
    s = fminf(::score_hook(score, of.batch, of.head, query, key), kMost);
    return ::score_hook_derivative(score, of.batch, of.head, query, key);
#else
    return 1.f;
#endif
}

// A weight times its slope.  What nobody sees has the weight 0, and any slope of a hook.
template <WorkloadTraits TRAITS>
__device__ __forceinline__ float with_slope(float weight, float slope) {
    if constexpr (TRAITS.hook) return weight == 0.f ? 0.f : weight * slope;
    return weight * slope;
}

// Which of the slopes is that of a head.
__device__ __forceinline__ int slope_index(const BackwardParams& p, int element, int head) {
    return element * p.score.alibi_batch_stride + head;
}
__device__ __forceinline__ float slope_to_base_2(const BackwardParams& p, int index) {
    return p.score.alibi_slopes[index] * kLog2E;
}

// What is subtracted at a distance that is `further` than the one whose product is `bias`; a
// slope's sign stays, since distances have none.
__device__ __forceinline__ float alibi_at(float slope, float bias, int further) {
    return copysignf(fmaf(slope, static_cast<float>(further), bias), slope);
}

}  // namespace fa_tune
