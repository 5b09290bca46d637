// 64 keys of a warpgroup against a block of queries: which pairs count, and P.
//
// A row of the accumulators is a key, a column a query.
#pragma once

#include "common/backward/mask.cuh"
#include "common/backward/score_changes.cuh"
#include "ptx/ex2.cuh"
#include "ptx/shared_pairs.cuh"
#include "ptx/tid.cuh"

namespace fa_tune::sm90::backward {

template <int kQueries, WorkloadTraits TRAITS>
struct KeyRows {
    static constexpr int kScores = kQueries / 2;  // of a thread

    const BackwardParams& p;
    const int warp, lane;
    const float scale_log2;
    [[no_unique_address]] Sequence<TRAITS.packed> sequence;  // of the tile
    int first_key;                                           // this warpgroup's, of the tile
    int first_slope;                                         // alibi: of the group's heads
    HookedHead first_head;                                   // hook: of the group

    // By what it reads anew of the thread, so that nothing of it takes up registers elsewhere.
    __device__ __forceinline__ void hide(float (&x)[kScores], int block) const {
        const int thread = ptx::tid_x(), lane = thread % 32;
        const int key = first_key + 16 * (thread / 32 % 4) + lane / 4;
        const Range rows[2] = {queries_of_key<TRAITS>(p, sequence, key),
                               queries_of_key<TRAITS>(p, sequence, key + 8)};
        hide_outside(x, rows, block * kQueries + 2 * (lane % 4));
    }
    __device__ __forceinline__ bool is_masked(int block) const {
        const Range queries{block * kQueries, block * kQueries + kQueries};
        return needs_mask<TRAITS>(p, sequence, queries, {first_key, first_key + 64});
    }

    // S of a block of queries of a head of the group becomes P.  `lse2`: of its queries, in shared
    // memory; with a soft cap or a hook `slopes` are its slopes.
    template <bool kMayMask = true>
    __device__ __forceinline__ void weigh(float (&s)[kScores], float (&slopes)[kScores],
                                          unsigned lse2, int block, int head) const {
        const unsigned at = lse2 + 8 * (lane % 4);
        if constexpr (TRAITS.softcap) cap_products(s, slopes, p.score.score_scale);
        float slope = 0.f, bias = 0.f;
        const int query = block * kQueries + 2 * (lane % 4);
        const int key = first_key + 16 * warp + lane / 4;
        if constexpr (TRAITS.hook) {
            const HookedHead of{first_head.batch, first_head.head + head};
#pragma unroll
            for (int i = 0; i < kScores; ++i) {
                slopes[i] = hook_product(s[i], p.score.score_scale, of, query + i / 4 * 8 + i % 2,
                                         key + i / 2 % 2 * 8);
            }
        }
        if constexpr (TRAITS.alibi) {
            slope = slope_to_base_2(p, first_slope + head);
            bias = slope * static_cast<float>(query + sequence.alibi_diagonal(p) - key);
        }
#pragma unroll
        for (int j = 0; j < kScores / 4; ++j) {
            float of_queries[2];
            ptx::ld_shared_v2(of_queries, at + 32 * j);
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                float x = s[4 * j + e] * scale_log2 - of_queries[e % 2];
                if constexpr (TRAITS.alibi) x -= alibi_at(slope, bias, 8 * j + e % 2 - e / 2 * 8);
                s[4 * j + e] = ptx::ex2_approx(x);
            }
        }
        if (kMayMask && is_masked(block)) hide(s, block);
    }
};

}  // namespace fa_tune::sm90::backward
