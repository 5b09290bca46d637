// The queries of one head of a batch element or of a packed sequence: where they are in tensors
// without maps, and in the workspace.
#pragma once

#include "common/backward/packed_tiles.cuh"
#include "common/backward/params.cuh"

namespace fa_tune {

template <bool kPacked>
struct QueryRows {
    const BackwardParams& p;
    const Sequence<kPacked>& sequence;
    int batch, head;
    long long of_all = batch * p.heads + head;  // the head's number in the batch

    // Eight elements a chunk, from the first of a row on.
    __device__ __forceinline__ const uint4* of(const unsigned short* tensor,
                                               const TensorStrides& strides, int row) const {
        return reinterpret_cast<const uint4*>(place(tensor, strides, row));
    }
    template <class Element>
    __device__ __forceinline__ Element* place(Element* tensor, const TensorStrides& strides,
                                              int row) const {
        if constexpr (kPacked) row += sequence.first_query;
        return tensor + batch * strides.batch + row * strides.seq + head * strides.head;
    }
    // Of the log-sum-exp or its gradient.
    __device__ __forceinline__ float of_lse(const float* tensor, int row) const {
        if constexpr (kPacked) row += sequence.first_query;
        return tensor[of_all * p.seq_len_q + row];
    }
    __device__ __forceinline__ long long padded(int row) const {
        if constexpr (kPacked) {
            row += kBlockRows * first_block(sequence.first_query, sequence.index);
        }
        return of_all * p.padded_q + row;
    }
};

// The block of queries of a CTA that has one of the workspace's, one after another.
template <bool kPacked>
struct QueryBlock {
    int batch, head, of_all, first_row;
    [[no_unique_address]] Sequence<kPacked> sequence;

    __device__ __forceinline__ static QueryBlock of(const BackwardParams& p, unsigned number) {
        const int blocks = p.padded_q / kBlockRows;
        const int of_batch = number / blocks;
        const int block = static_cast<int>(number) - of_batch * blocks;
        if constexpr (kPacked) {
            const PackedBlock found = packed_block(p.packed, p.packed.cu_seqlens_q, block);
            return {0, of_batch, of_batch, found.number * kBlockRows, found.sequence};
        } else {
            const int batch = of_batch / p.heads;
            return {batch, of_batch - batch * p.heads, of_batch, block * kBlockRows, {}};
        }
    }
    __device__ __forceinline__ QueryRows<kPacked> rows(const BackwardParams& p) const {
        return {p, sequence, batch, head, of_all};
    }
};

}  // namespace fa_tune
