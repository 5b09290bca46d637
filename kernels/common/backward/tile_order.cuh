// Which tiles there are of a launch of the backward pass, and in what order.
//
// A tile is a block of keys of one KV head, or for dQ a block of queries of one head.  Groups of
// neighbouring heads come one after another; within a group the longest tiles come first, of all
// its heads (common/work_tile.cuh).
#pragma once

#include "common/backward/packed_tiles.cuh"
#include "common/backward/params.cuh"
#include "common/work_tile.cuh"

namespace fa_tune {

template <bool kPacked>
struct WorkTile {
    int number;  // -1: there is none left
    int block;   // of keys or queries
    int head;    // of its batch element
    int batch;
    [[no_unique_address]] Sequence<kPacked> sequence;

    // Whether it has no row.
    __device__ __forceinline__ bool is_empty() const {
        if constexpr (kPacked)
            return number >= 0 && sequence.queries(*this) + sequence.keys(*this) == 0;
        return false;
    }
};

// All tiles of a launch.
template <bool kPacked>
struct TileOrder {
    int block_rows;
    int m_blocks;     // of a head
    int total_heads;  // with those of the batch
    int l2_head_group;
    int heads;
    bool first_is_longest;  // of the blocks of a head, otherwise the last
    const PackedBatch& packed;

    // Blocks of keys of each KV head: with a causal mask the first keys are seen by most queries.
    __device__ __forceinline__ static TileOrder of_keys(const BackwardParams& p, int block) {
        const int heads = p.heads / p.heads_per_kv;
        return {block,           blocks_of(p, p.seq_len_kv, block),
                heads * p.batch, p.l2_head_group,
                heads,           true,
                p.packed};
    }

    // Blocks of queries of each head: the last queries see most keys.
    __device__ __forceinline__ static TileOrder of_queries(const BackwardParams& p, int block) {
        return {block,
                blocks_of(p, p.seq_len_q, block),
                p.heads * p.batch,
                p.l2_head_group * p.heads_per_kv,
                p.heads,
                false,
                p.packed};
    }

    __device__ __forceinline__ WorkTile<kPacked> decode(int number) const {
        int block, head;
        longest_first_tile(number, *this, block, head);
        if (first_is_longest) block = m_blocks - 1 - block;
        const int known = number < m_blocks * total_heads ? number : -1;
        if constexpr (kPacked) {
            const int* const starts = first_is_longest ? packed.cu_seqlens_kv : packed.cu_seqlens_q;
            const PackedBlock found = packed_block(packed, starts, block, block_rows);
            return {known, found.number, head, 0, found.sequence};
        } else {
            const int batch = head / heads;
            return {known, block, head - batch * heads, batch, {}};
        }
    }

  private:
    __device__ __forceinline__ static int blocks_of(const BackwardParams& p, int rows, int block) {
        if constexpr (kPacked) return first_block(rows, p.packed.batch, block);
        return (rows + block - 1) / block;
    }
};

}  // namespace fa_tune
