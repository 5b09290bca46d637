// The producer: one thread that keeps the rings of K and V and the Q buffers filled by TMA.
//
//     per tile of n key blocks:   K(n-1)  Q  K(n-2) V(n-1)  K(n-3) V(n-2)  ...  K(0) V(1)  V(0)
//
// With a window the last block is another than 0.  K runs one block ahead of V, as the consumers
// do.  It goes on to the next tile as soon as there is room.
#pragma once

#include "common/pipeline.cuh"
#include "ptx/cp_async_bulk.cuh"
#include "ptx/mbarrier.cuh"
#include "sm90/fwd/scheduler.cuh"
#include "sm90/fwd/shared_memory.cuh"

namespace fa_tune::sm90 {

template <Sm90Config CFG, WorkloadTraits TRAITS>
struct Producer {
    using QTile = typename SharedMemory<CFG>::QTile;

    // The next tile is asked for when this block of V comes next, as late as its number is there in
    // time: with longest_first a CTA that asked at the beginning of a long tile would get another
    // long one.
    static constexpr int kFetchAt = 1;

    const ForwardParams& p;
    const ptx::TensorMap &q_map, &k_map, &v_map;
    const SharedAddress<CFG> smem;
    RingPosition<CFG.q_stages> q_ring;
    RingPosition<CFG.stages> k_ring, v_ring;

    __device__ __forceinline__ void run(const WorkTile& first) {
        ProducerTiles<CFG, TRAITS> tiles{{p}, {smem}};
        constexpr Sequence<TRAITS.packed> sequence{};  // of no packed batch
        for (WorkTile tile = first; tile.number >= 0; tile = tiles.next(tile)) {
            const int kv_head = tile.head / p.heads_per_kv;
            int block = key_blocks<CFG, TRAITS>(p, tile, sequence) - 1;
            // The 0 not by a function: NVRTC then advances the tiles' ring in another way, and the
            // machine code is not the one that was measured.
            const int last =
                TRAITS.window ? first_key_block<CFG, TRAITS>(p, tile, sequence, block + 1) : 0;
            if (block - last <= kFetchAt) tiles.fetch_next();
            load_k(block, kv_head, tile.batch, sequence);
            load_q(tile, sequence);
#pragma unroll 1
            for (; block > last; --block) {
                if (block - last == kFetchAt + 1) tiles.fetch_next();
                load_k(block - 1, kv_head, tile.batch, sequence);
                load_v(block, kv_head, tile.batch, sequence);
            }
            load_v(last, kv_head, tile.batch, sequence);
        }
        tiles.release_counters();
    }

    // The keys of a CTA of a cluster, which has one tile.
    __device__ __forceinline__ void run_share(const WorkTile& tile) {
        constexpr Sequence<TRAITS.packed> sequence{};
        const KeyBlocks blocks = key_blocks_of_cta<CFG, TRAITS>(p, tile, sequence);
        if (blocks.first == blocks.end) return;
        const int kv_head = tile.head / p.heads_per_kv;
        int block = blocks.end - 1;
        load_k(block, kv_head, tile.batch, sequence);
        load_q(tile, sequence);
#pragma unroll 1
        for (; block > blocks.first; --block) {
            load_k(block - 1, kv_head, tile.batch, sequence);
            load_v(block, kv_head, tile.batch, sequence);
        }
        load_v(block, kv_head, tile.batch, sequence);
    }

    // The same of a packed batch: the next tile is found before the last load, which has to wait
    // for room, so that the search costs no time, and the one after a short one is asked for then.
    // `first`: that of PackedBeginning, who says when it is right.
    __device__ __forceinline__ void run(const WorkTile& first, const Sequence<true>& first_sequence,
                                        bool may_be_equal) {
        ProducerTiles<CFG, TRAITS> tiles{{p}, {smem}};
        WorkTile tile = first;
        Sequence<true> sequence = first_sequence;
        BlocksLeft blocks = blocks_of(tile, sequence);
        int kv_head = tile.head / p.heads_per_kv;
        bool begins = tile.number >= 0, known = false, equal = may_be_equal;
        while (true) {
            int block = blocks.next;
            if (begins) begin_tile(tile, kv_head, sequence, block);
            if (!known) {
                known = true;
                const bool right = first_is_right();
                if (!right) {  // its copies have been taken back
                    equal = false;
                    tile = TileOrder<CFG, TRAITS>{p}.found(smem, sequence);
                    kv_head = tile.head / p.heads_per_kv;
                    q_ring = {};
                    k_ring = {};
                }
                // Not before: a number that was asked for must be used.
                blocks = begin_blocks(tile, sequence, tiles);
                begins = !right;
                if (tile.number < 0) break;
                if (!right) continue;
            }
#pragma unroll 1
            for (; block > blocks.last; --block) {
                if (block - blocks.last == kFetchAt + 1) tiles.fetch_next();
                load_k(block - 1, kv_head, tile.batch, sequence);
                load_v(block, kv_head, tile.batch, sequence);
            }
            Sequence<true> next_sequence;
            const WorkTile next = tiles.find_next(tile, sequence, equal, next_sequence);
            const BlocksLeft next_blocks = begin_blocks(next, next_sequence, tiles);
            const int next_kv_head = next.head / p.heads_per_kv;
            load_v(blocks.last, kv_head, tile.batch, sequence);
            if (next.number < 0) break;
            tile = next;
            sequence = next_sequence;
            blocks = next_blocks;
            kv_head = next_kv_head;
            begins = true;
        }
        tiles.release_counters();
    }

    // What PackedBeginning says of the first tile of a packed batch.  After it, V may come where
    // the batch was ordered.
    __device__ __forceinline__ bool first_is_right() const {
        const unsigned known = smem.v_empty(0);
        ptx::mbarrier_wait(known, 0);
        // Another phase, of which nobody hears: then the barrier is as it was.
#pragma unroll 1
        for (int i = 0; i < 4 * CFG.mma_warpgroups; ++i) ptx::mbarrier_arrive(known);
        if constexpr (TileOrder<CFG, TRAITS>::kGuesses) {
            return ptx::ld_shared(smem.work_tile(0)) != 0;
        } else {
            return true;
        }
    }

    // A tile's first copies: its Q and the last block of K.
    __device__ __forceinline__ void begin_tile(const WorkTile& tile, int kv_head,
                                               const Sequence<true>& sequence, int block) {
        load_k(block, kv_head, tile.batch, sequence);
        load_q(tile, sequence);
    }

    // Key blocks of a tile, from `next` down to `last`.
    struct BlocksLeft {
        int next, last;
    };

    __device__ __forceinline__ BlocksLeft blocks_of(const WorkTile& tile,
                                                    const Sequence<true>& sequence) const {
        const int end = key_blocks<CFG, TRAITS>(p, tile, sequence);
        const int last = TRAITS.window ? first_key_block<CFG, TRAITS>(p, tile, sequence, end) : 0;
        return {end - 1, last};
    }

    // Those of a tile, if there is one.  Asks for the tile after it, if it has few.
    __device__ __forceinline__ BlocksLeft begin_blocks(const WorkTile& tile,
                                                       const Sequence<true>& sequence,
                                                       ProducerTiles<CFG, TRAITS>& tiles) const {
        const BlocksLeft blocks = blocks_of(tile, sequence);
        if (tile.number >= 0 && blocks.next - blocks.last <= kFetchAt) tiles.fetch_next();
        return blocks;
    }

    __device__ __forceinline__ void load_q(const WorkTile& tile,
                                           const Sequence<TRAITS.packed>& sequence) {
#pragma unroll
        for (int w = 0; w < CFG.mma_warpgroups; ++w) {
            const int slot = q_ring.stage * CFG.mma_warpgroups + w;
            const unsigned full = smem.q_full(slot);
            ptx::mbarrier_wait(smem.q_empty(slot), q_ring.parity ^ 1);
            ptx::mbarrier_arrive_expect_tx(full, QTile::kBytes);
            const int row = first_row<CFG>(tile, w);
#pragma unroll
            for (int panel = 0; panel < QTile::kPanels; ++panel) {
                load_box<TRAITS.packed>(smem.q(slot) + panel * QTile::kPanelBytes, q_map, full,
                                        ptx::kEvictFirst, 64 * panel, tile.head,
                                        sequence.template q_box<64>(row, tile.batch));
            }
        }
        q_ring.advance();
    }

    __device__ __forceinline__ void load_k(int block, int kv_head, int batch,
                                           const Sequence<TRAITS.packed>& sequence) {
        load_kv<typename SharedMemory<CFG>::KBlock>(k_map, smem.k(0), smem.k_full(0),
                                                    smem.k_empty(0), k_ring, block, kv_head, batch,
                                                    sequence);
    }

    __device__ __forceinline__ void load_v(int block, int kv_head, int batch,
                                           const Sequence<TRAITS.packed>& sequence) {
        load_kv<typename SharedMemory<CFG>::VBlock>(v_map, smem.v(0), smem.v_full(0),
                                                    smem.v_empty(0), v_ring, block, kv_head, batch,
                                                    sequence);
    }

    // `tiles`, `full_barriers`, `empty_barriers`: of stage 0.
    template <class KVBlock>
    __device__ __forceinline__ void load_kv(const ptx::TensorMap& map, unsigned tiles,
                                            unsigned full_barriers, unsigned empty_barriers,
                                            RingPosition<CFG.stages>& ring, int block, int kv_head,
                                            int batch, const Sequence<TRAITS.packed>& sequence) {
        const unsigned full = full_barriers + 8 * ring.stage;
        const unsigned destination = tiles + ring.stage * KVBlock::kBytes;
        ptx::mbarrier_wait(empty_barriers + 8 * ring.stage, ring.parity ^ 1);
        ptx::mbarrier_arrive_expect_tx(full, KVBlock::kBytes);
#pragma unroll
        for (int panel = 0; panel < KVBlock::kPanels; ++panel) {
            load_box<TRAITS.packed>(destination + panel * KVBlock::kPanelBytes, map, full,
                                    ptx::kEvictLast, 64 * panel, kv_head,
                                    sequence.template kv_box<CFG.B_c>(block * CFG.B_c, batch));
        }
        ring.advance();
    }
};

}  // namespace fa_tune::sm90
