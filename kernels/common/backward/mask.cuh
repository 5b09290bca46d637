// Which pairs of a query and a key count, and which blocks have any.
//
//              keys
//     query i      . . x x x x . . .      key j counts when
//     query i+1    . . . x x x x . .          i + first_diagonal <= j  (window)
//        ...                                  j <= i + diagonal        (causal)
//                                             j < keys                 (ragged)
//
// Queries and keys are those of a batch element, or of a sequence of a packed batch.
//
// In a warpgroup's accumulators a thread has two rows, 8 apart, and of each two columns of every
// eight (ptx/wgmma.cuh).  Rows are keys where dK and dV are made, and queries where dQ is.
//
// P and dS of pairs that do not count become 0 after they are computed: an exponential without
// bounds may be infinite, and dP or D may be NaN of a query or of a key alone.
#pragma once

#include "common/backward/params.cuh"
#include "common/problem.cuh"
#include "common/sequence.cuh"

namespace fa_tune {

// From `first` to before `end`.
struct Range {
    int first, end;

    __device__ __forceinline__ int count() const { return max(0, end - first); }
    // The blocks of so many that have any of it.
    template <int kBlock>
    __device__ __forceinline__ Range blocks() const {
        if (end <= first) return {0, 0};
        return {first / kBlock, (end + kBlock - 1) / kBlock};
    }
};

// The queries that see any of these keys.
template <WorkloadTraits TRAITS>
__device__ __forceinline__ Range queries_of_keys(const BackwardParams& p,
                                                 const Sequence<TRAITS.packed>& sequence,
                                                 const Range& keys) {
    Range seen{0, sequence.queries(p)};
    if constexpr (TRAITS.causal) seen.first = max(seen.first, keys.first - sequence.diagonal(p));
    if constexpr (TRAITS.window) {
        seen.end = min(seen.end, min(keys.end, sequence.keys(p)) - sequence.first_diagonal(p));
    }
    return seen;
}

// The order of a tile's steps: block of queries after block, and in each all heads of the group.
// With several heads from the last block to the first, so that CTAs of a KV head, which all have
// the last block, read Q and dO and add to dQ of a block at the same time, while L2 has it.
__device__ __forceinline__ int step_direction(const BackwardParams& p) {
    return p.heads_per_kv > 1 ? -1 : 1;
}
__device__ __forceinline__ int starting_block(const BackwardParams& p, const Range& blocks) {
    return p.heads_per_kv > 1 ? blocks.end - 1 : blocks.first;
}

// The keys that any of these queries sees.
template <WorkloadTraits TRAITS>
__device__ __forceinline__ Range keys_of_queries(const BackwardParams& p,
                                                 const Sequence<TRAITS.packed>& sequence,
                                                 const Range& queries) {
    Range seen{0, sequence.keys(p)};
    if constexpr (TRAITS.causal) {
        seen.end = min(seen.end, min(queries.end, sequence.queries(p)) + sequence.diagonal(p));
    }
    if constexpr (TRAITS.window) {
        seen.first = max(seen.first, queries.first + sequence.first_diagonal(p));
    }
    return seen;
}

// Whether any of these pairs does not count.  kPartKeys: the last block of keys may be a part of
// one, whose missing keys, rows of zeros, have weights that may be infinite.
template <WorkloadTraits TRAITS, bool kPartKeys = TRAITS.ragged>
__device__ __forceinline__ bool needs_mask(const BackwardParams& p,
                                           const Sequence<TRAITS.packed>& sequence,
                                           const Range& queries, const Range& keys) {
    bool needed = false;
    if constexpr (TRAITS.causal) needed |= keys.end - 1 > queries.first + sequence.diagonal(p);
    if constexpr (TRAITS.window) {
        needed |= keys.first < queries.end - 1 + sequence.first_diagonal(p);
    }
    // A query after the last may see keys that no other does.
    if constexpr (TRAITS.diagonal()) needed |= queries.end > sequence.queries(p);
    if constexpr (kPartKeys) needed |= keys.end > sequence.keys(p);
    return needed;
}

// The columns of a row that count.
template <WorkloadTraits TRAITS>
__device__ __forceinline__ Range queries_of_key(const BackwardParams& p,
                                                const Sequence<TRAITS.packed>& sequence, int key) {
    Range seen = queries_of_keys<TRAITS>(p, sequence, {key, key + 1});
    if (TRAITS.ragged && key >= sequence.keys(p)) seen.end = 0;
    return seen;
}
template <WorkloadTraits TRAITS>
__device__ __forceinline__ Range keys_of_query(const BackwardParams& p,
                                               const Sequence<TRAITS.packed>& sequence, int query) {
    return keys_of_queries<TRAITS>(p, sequence, {query, query + 1});
}

// A thread's elements of columns outside these of its two rows become 0.  `first_column`: of its
// first element.
template <int kElements>
__device__ __forceinline__ void hide_outside(float (&x)[kElements], const Range (&rows)[2],
                                             int first_column) {
    constexpr int kOfRow = kElements / 2;
    static_assert(kOfRow <= 32, "the elements of a row are bits of a word");
    // How many of a row's elements lie before a column.
    const auto before = [&](int column) {
        const int columns = max(0, column - first_column);
        return min(columns / 8 * 2 + min(columns % 8, 2), kOfRow);
    };
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        // Tested against constants: one instruction for seven elements.
        const unsigned counts = __funnelshift_rc(0xffffffffu, 0u, 32 - before(rows[i].end)) &
                                ~__funnelshift_rc(0xffffffffu, 0u, 32 - before(rows[i].first));
#pragma unroll
        for (int e = 0; e < kOfRow; ++e) {
            float& element = x[e / 2 * 4 + 2 * i + e % 2];
            if (!(counts & 1u << e)) element = 0.f;
        }
    }
}

}  // namespace fa_tune
