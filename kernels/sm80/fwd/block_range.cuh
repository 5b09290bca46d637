// Which blocks of keys a CTA visits, and which of them need a mask.
//
//                     keys
//               0         unmasked      end
//     rows      | whole | whole | x . . |  beyond: never visited
//     first_query ...   |       | x x . |
//
// With a window the first blocks are never visited, and the first of the others need a mask.
//
// The walk goes from the last block to the first, so masked blocks come first.
#pragma once

#include "common/mask.cuh"
#include "common/problem.cuh"
#include "common/sequence.cuh"
#include "sm80/fwd/params.cuh"

namespace fa_tune::sm80 {

// Blocks [begin, end) have a key that some row of the CTA sees, unless begin >= end; of these,
// blocks [whole, unmasked) are seen whole by every row.  Without a window begin and whole are 0.
struct BlockRange {
    int end, unmasked, begin, whole;

    template <WorkloadTraits TRAITS>
    __device__ __forceinline__ bool masks(int block) const {
        return block >= unmasked || (TRAITS.window && block < whole);
    }

    template <int kRows, int kKeys, WorkloadTraits TRAITS>
    __device__ __forceinline__ static BlockRange of(const ForwardParams& params,
                                                    const Sequence<TRAITS.packed>& sequence,
                                                    int first_query) {
        int keys = sequence.keys(params);
        int whole_keys = sequence.keys(params);
        if constexpr (TRAITS.causal) {
            const int last_query = min(first_query + kRows, sequence.queries(params)) - 1;
            keys = max(0, min(keys, last_query + sequence.diagonal(params) + 1));
            whole_keys = max(0, min(whole_keys, first_query + sequence.diagonal(params) + 1));
        }
        int first = 0, first_of_all = 0;
        if constexpr (TRAITS.window) {
            const int last_query = min(first_query + kRows, sequence.queries(params)) - 1;
            first = max(0, first_key_seen(first_query, sequence.first_diagonal(params)));
            first_of_all = max(0, first_key_seen(last_query, sequence.first_diagonal(params)));
        }
        return {(keys + kKeys - 1) / kKeys, whole_keys / kKeys, first / kKeys,
                (first_of_all + kKeys - 1) / kKeys};
    }
};

}  // namespace fa_tune::sm80
