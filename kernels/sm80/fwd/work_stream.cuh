// What a persistent CTA works on: blocks of keys, tile after tile.
//
// A tile is B_r query rows of one head.  A CTA's tiles, and the blocks of each from the last to
// the first, make up one stream; who multiplies does not care where in it a tile ends:
//
//     | tile 5: block 3, 2, 1, 0 | tile 137: 3, 2, 1, 0 | tile 290: ... | end
//
// The first tile is the CTA's own number, each further one the next that no CTA has taken.
//
// Tiles are in the order of common/work_tile.cuh, longest first with a causal mask.
//
// The work item of a block tells all that is to be known of it.  It lies in shared memory,
// published with the block of K; its `block` is -1 behind the last block of the last tile.
#pragma once

#include "common/member_order.cuh"
#include "common/problem.cuh"
#include "common/work_tile.cuh"
#include "ptx/shared_words.cuh"
#include "sm80/fwd/block_range.cuh"

namespace fa_tune::sm80 {

struct WorkItem {
    int first_query;
    int heads;  // query head, and kv head in the upper half
    int batch;
    int block;  // how many of the tile come after it

    __device__ __forceinline__ int head() const { return heads & 0xffff; }
    __device__ __forceinline__ int kv_head() const {
        return static_cast<int>(static_cast<unsigned>(heads) >> 16);
    }

    __device__ __forceinline__ void store(unsigned address) const {
        const int words[4] = {first_query, heads, batch, block};
        ptx::st_shared_v4(address, words);
    }
    __device__ __forceinline__ static WorkItem load(unsigned address) {
        int words[4];
        ptx::ld_shared_v4(words, address);
        return {words[0], words[1], words[2], words[3]};
    }
    __device__ __forceinline__ static int load_block(unsigned address) {
        return ptx::ld_shared(address + 12);
    }
};

template <FlashForwardKernelConfig CFG, WorkloadTraits TRAITS>
struct WorkStream {
    static constexpr int kBytes = 32;

    const ForwardParams& p;
    const unsigned smem;  // the item published last, and the number of the next tile

    __device__ __forceinline__ int m_blocks() const {
        return (p.seq_len_q + CFG.B_r - 1) / CFG.B_r;
    }

    __device__ __forceinline__ int tiles() const {
        if constexpr (TRAITS.packed) {
            return p.packed.members[p.packed.batch].first_tile * p.heads;
        } else {
            return m_blocks() * p.heads * p.batch;
        }
    }

    // The item of the first block of tile `number`.
    __device__ __forceinline__ WorkItem first_of(int number) const {
        int m_block, head, batch;
        if constexpr (TRAITS.packed) {
            const PackedTile tile = packed_tile<TRAITS.causal>(number, 0, p);
            if (tile.m_block < 0) return {0, 0, 0, -1};
            m_block = tile.m_block;
            head = tile.head;
            batch = tile.place;
        } else {
            int head_in_all;
            const int rows = m_blocks();
            if constexpr (TRAITS.causal) {
                const int section = number / (p.l2_head_group * rows);
                const int in_section = number - section * p.l2_head_group * rows;
                const int first_head = section * p.l2_head_group;
                const int heads = min(p.l2_head_group, p.heads * p.batch - first_head);
                m_block = rows - 1 - in_section / heads;
                head_in_all = first_head + in_section % heads;
            } else {
                head_in_all = number / rows;
                m_block = number - head_in_all * rows;
            }
            batch = head_in_all / p.heads;
            head = head_in_all - batch * p.heads;
        }
        const int first_query = m_block * CFG.B_r;
        const auto sequence = Sequence<TRAITS.packed>::of(p, batch);
        // A tile whose rows see no key visits one block, all masked: every tile takes one path.
        const int end =
            max(1, BlockRange::of<CFG.B_r, CFG.B_c, TRAITS>(p, sequence, first_query).end);
        const unsigned kv_head = head / p.heads_per_kv;
        return {first_query, static_cast<int>(head | kv_head << 16), batch,
                end - 1 - last_block(first_query, batch)};
    }

    // The block of keys of an item.
    __device__ __forceinline__ int key_block(const WorkItem& item) const {
        return item.block + last_block(item.first_query, item.batch);
    }

    // The rest by one thread.

    __device__ __forceinline__ WorkItem begin() const {
        fetch_next();
        const WorkItem item = first_of(blockIdx.x);
        item.store(smem);
        return item;
    }

    __device__ __forceinline__ WorkItem last_published() const { return WorkItem::load(smem); }

    // The item after `item`, which is not the end.
    __device__ __forceinline__ WorkItem next(WorkItem item) const {
        if (item.block > 0) {
            --item.block;
        } else {
            const int number = ptx::ld_shared(smem + 16);
            if (number < tiles()) {
                fetch_next();
                item = first_of(number);
            } else {
                item.block = -1;
                release_counters();
            }
        }
        item.store(smem);
        return item;
    }

    // Every CTA is refused once; the last one leaves the counters as they were.
    __device__ __forceinline__ void release_counters() const {
        if (atomicAdd(&p.counters[1], 1u) == gridDim.x - 1) {
            p.counters[0] = 0;
            p.counters[1] = 0;
        }
    }

  private:
    // The block of keys that a tile visits last.
    __device__ __forceinline__ int last_block(int first_query, int batch) const {
        if constexpr (!TRAITS.window) return 0;
        const auto sequence = Sequence<TRAITS.packed>::of(p, batch);
        const auto range = BlockRange::of<CFG.B_r, CFG.B_c, TRAITS>(p, sequence, first_query);
        return min(range.begin, max(1, range.end) - 1);
    }

    __device__ __forceinline__ void fetch_next() const {
        ptx::st_shared(smem + 16, static_cast<int>(gridDim.x + atomicAdd(&p.counters[0], 1u)));
    }
};

}  // namespace fa_tune::sm80
