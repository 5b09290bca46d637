// Functions of one's own that scores go through, and what they may use.  Their text comes behind
// this and before the kernel; FA_TUNE_SCORE_HOOK says that there is one, FA_TUNE_SCORE_HOOK_BY_FOUR
// that it is of the second form.
//
//     float score_hook(float score, int batch, int head, int query, int key)
//
//     struct score_hook {
//         // The softmax is of unit s + origin; 1 and 0 where they are not said.
//         static constexpr float unit, origin;
//         // Each s[i] that comes, times `scale`, is a score.
//         static void four(float (&s)[4], float scale, const ScorePlaces& at);
//     };
//
// The second has four scores of a query at a time, so that they can share what is dear, and its
// scale and its unit are factors of others that the kernel multiplies with anyway.  A NaN of a key
// that a mask hides never comes to it.
#pragma once

#include "common/tanh.cuh"

namespace fa_tune {

// Of which queries and keys four scores are.  What is not asked for is not computed.
struct ScorePlaces {
    int batch, head;
    int first_query, first_key;  // one query; two keys, and two that are 8 further

    __device__ __forceinline__ int query(int) const { return first_query; }
    __device__ __forceinline__ int key(int i) const { return first_key + i / 2 * 8 + i % 2; }
};

}  // namespace fa_tune
