// What the rows of Q and the keys of a tile belong to: an element of the batch, or a sequence of a
// packed one.
#pragma once

#include "common/packed_batch.cuh"
#include "ptx/cp_async_bulk.cuh"

namespace fa_tune {

// Where a box of a tensor map lies: its second and its last coordinate.
//
// The map of a packed tensor has dimensions (d_head, kFar, heads, kFar + 1, rows + 1), of which the
// second and the last have the stride s of a row and the fourth 2^34 - s.  At kFar = 2^30 of the
// fourth, an address is 2^64 - kFar s further on, that is, kFar rows before.  So the second and the
// last coordinate say the row by their sum less kFar, and where the second ends, ends the sequence:
// what is beyond reads as zeros and is not written.
//
//     box of 4 rows, 3 of them left      second    kFar - 3 ... kFar - 1 | kFar
//                                        last      first row + 3
struct BoxPlace {
    int second, last;
};

constexpr int kFar = 1 << 30;

template <bool kPacked>
__device__ __forceinline__ void load_box(unsigned destination, const ptx::TensorMap& map,
                                         unsigned barrier, unsigned long long policy, int column,
                                         int head, const BoxPlace& place) {
    if constexpr (kPacked) {
        ptx::cp_async_bulk_tensor_5d_load(destination, map, barrier, policy, column, place.second,
                                          head, kFar, place.last);
    } else {
        ptx::cp_async_bulk_tensor_4d_load(destination, map, barrier, policy, column, place.second,
                                          head, place.last);
    }
}

template <bool kPacked>
__device__ __forceinline__ void store_box(const ptx::TensorMap& map, unsigned source, int column,
                                          int head, const BoxPlace& place) {
    if constexpr (kPacked) {
        ptx::cp_async_bulk_tensor_5d_store(map, source, column, place.second, head, kFar,
                                           place.last);
    } else {
        ptx::cp_async_bulk_tensor_4d_store(map, source, column, place.second, head, place.last);
    }
}

// What a tile's rows and keys belong to: one element of a dense batch ...
template <bool kPacked>
struct Sequence {
    template <class Params>
    __device__ __forceinline__ static Sequence of(const Params&, int) {
        return {};
    }
    template <class Params>
    __device__ __forceinline__ static const int& queries(const Params& p) {
        return p.seq_len_q;
    }
    template <class Params>
    __device__ __forceinline__ static const int& keys(const Params& p) {
        return p.seq_len_kv;
    }
    template <class Params>
    __device__ __forceinline__ static const int& diagonal(const Params& p) {
        return p.diagonal;
    }
    template <class Params>
    __device__ __forceinline__ static const int& first_diagonal(const Params& p) {
        return p.score.first_diagonal;
    }
    template <class Params>
    __device__ __forceinline__ static const int& alibi_diagonal(const Params& p) {
        return p.score.alibi_diagonal;
    }
    // Which element of the batch it is; `batch`: that of its tile.
    __device__ __forceinline__ static int element(int batch) { return batch; }
    // A box that begins at a row of Q, or of K and V.
    template <int kRows>
    __device__ __forceinline__ static BoxPlace q_box(int row, int batch) {
        return {row, batch};
    }
    template <int kRows>
    __device__ __forceinline__ static BoxPlace kv_box(int row, int batch) {
        return {row, batch};
    }
};

// ... or a sequence of a packed one.
template <>
struct Sequence<true> {
    int first_query, n_queries, first_key, n_keys, of_diagonal;
    int index;  // in the batch

    __device__ __forceinline__ static Sequence of(const PackedMember& member) {
        return {member.first_query,           member.queries, member.first_key, member.keys,
                member.keys - member.queries, member.index};
    }
    // That of a place in the order of work.
    template <class Params>
    __device__ __forceinline__ static Sequence of(const Params& p, int place) {
        return of(p.packed.members[place]);
    }
    // The part from a query on, with all keys.
    __device__ __forceinline__ Sequence from(int query) const {
        return {
            first_query + query, n_queries - query, first_key, n_keys, of_diagonal + query, index};
    }
    template <class Params>
    __device__ __forceinline__ const int& queries(const Params&) const {
        return n_queries;
    }
    template <class Params>
    __device__ __forceinline__ const int& keys(const Params&) const {
        return n_keys;
    }
    // Those of the launch are counted from the alignment of the last query with the last key.
    template <class Params>
    __device__ __forceinline__ int diagonal(const Params& p) const {
        return of_diagonal + p.diagonal;
    }
    template <class Params>
    __device__ __forceinline__ int first_diagonal(const Params& p) const {
        return of_diagonal + p.score.first_diagonal;
    }
    template <class Params>
    __device__ __forceinline__ int alibi_diagonal(const Params& p) const {
        return of_diagonal + p.score.alibi_diagonal;
    }
    __device__ __forceinline__ int element(int) const { return index; }
    template <int kRows>
    __device__ __forceinline__ BoxPlace q_box(int row, int) const {
        return box<kRows>(row, first_query, n_queries);
    }
    template <int kRows>
    __device__ __forceinline__ BoxPlace kv_box(int row, int) const {
        return box<kRows>(row, first_key, n_keys);
    }

  private:
    template <int kRows>
    __device__ __forceinline__ static BoxPlace box(int row, int first, int length) {
        const int left = max(0, min(length - row, kRows));
        return {kFar - left, first + row + left};
    }
};

}  // namespace fa_tune
