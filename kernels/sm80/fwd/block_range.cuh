// Which blocks of keys a CTA visits, and which of them need a mask.
//
//                     keys
//               0         unmasked      end
//     rows      | whole | whole | x . . |  beyond: never visited
//     first_query ...   |       | x x . |
//
// The walk goes from the last block to the first, so masked blocks come first.
#pragma once

#include "common/sequence.cuh"
#include "sm80/fwd/params.cuh"

namespace fa_tune::sm80 {

// Blocks [0, end) have a key that some row of the CTA sees; of these, blocks [0, unmasked) are
// seen whole by every row.
struct BlockRange {
    int end, unmasked;

    template <int kRows, int kKeys, bool kCausal, bool kPacked>
    __device__ __forceinline__ static BlockRange of(const ForwardParams& params,
                                                    const Sequence<kPacked>& sequence,
                                                    int first_query) {
        int keys = sequence.keys(params);
        int whole_keys = sequence.keys(params);
        if constexpr (kCausal) {
            const int last_query = min(first_query + kRows, sequence.queries(params)) - 1;
            keys = max(0, min(keys, last_query + sequence.diagonal(params) + 1));
            whole_keys = max(0, min(whole_keys, first_query + sequence.diagonal(params) + 1));
        }
        return {(keys + kKeys - 1) / kKeys, whole_keys / kKeys};
    }
};

}  // namespace fa_tune::sm80
