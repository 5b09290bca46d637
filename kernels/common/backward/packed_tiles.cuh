// Where the sequences of a packed batch begin, in blocks of so many rows: of the workspace, which
// has whole blocks of kBlockRows of each, and of the tiles of a head.
//
//     (cu_seqlens[i] + (rows - 1) i) / rows
//
// The host knows how many blocks there are in all.  A sequence has as many as it needs, or one
// more, which nobody reads or writes.
#pragma once

#include "common/sequence.cuh"

namespace fa_tune {

constexpr int kBlockRows = 128;

__device__ __forceinline__ int first_block(int first_row, int index, int rows = kBlockRows) {
    return static_cast<int>((static_cast<unsigned>(first_row) + (rows - 1u) * index) /
                            static_cast<unsigned>(rows));
}

// A block of a head's, counted from the first one of its sequence.
struct PackedBlock {
    int number;
    Sequence<true> sequence;
};

// `starts`: where sequences begin, of what the block has up to `block_rows` of.  Of a block that
// has no row the sequence has none, either.
__device__ __forceinline__ PackedBlock packed_block(const PackedBatch& batch, const int* starts,
                                                    int block, int block_rows = kBlockRows) {
    int index = 0, beyond = batch.batch;
#pragma unroll 1
    while (index + 1 < beyond) {
        const int middle = (index + beyond) / 2;
        if (first_block(starts[middle], middle, block_rows) <= block) {
            index = middle;
        } else {
            beyond = middle;
        }
    }
    const auto length = [&](const int* used, const int* from) {
        return used != nullptr ? used[index] : from[index + 1] - from[index];
    };
    const int queries = length(batch.used_q, batch.cu_seqlens_q);
    const int keys = length(batch.used_kv, batch.cu_seqlens_kv);
    const int of_sequence = block - first_block(starts[index], index, block_rows);
    const int rows = starts == batch.cu_seqlens_q ? queries : keys;
    if (of_sequence < 0 || of_sequence * block_rows >= rows) return {};
    return {of_sequence,
            {batch.cu_seqlens_q[index], queries, batch.cu_seqlens_kv[index], keys, keys - queries,
             index}};
}

}  // namespace fa_tune
