// Which tiles a CTA does, and how its warpgroups hear of them.
//
// A tile is a block of keys of one KV head, or for dQ a block of queries of one head.  Groups of
// neighbouring heads come one after another; within a group the longest tiles come first, of all
// its heads (common/work_tile.cuh).
//
// Without `dynamic` a CTA has one tile.  With it, the producer asks a counter for the next one and
// passes it on to the consumers, who have no time for divisions, through two slots in shared
// memory.
//
// A head of a packed batch has the blocks of all sequences (packed_tiles.cuh), some of which are of
// none.
#pragma once

#include "common/constants.cuh"
#include "common/pipeline.cuh"
#include "common/problem.cuh"
#include "common/work_tile.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/shared_words.cuh"
#include "sm90/bwd/packed_tiles.cuh"
#include "sm90/bwd/params.cuh"

namespace fa_tune::sm90::backward {

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
    int m_blocks;     // of a head
    int total_heads;  // with those of the batch
    int l2_head_group;
    int heads;
    bool first_is_longest;  // of the blocks of a head, otherwise the last
    const PackedBatch& packed;

    // Blocks of keys of each KV head: with a causal mask the first keys are seen by most queries.
    __device__ __forceinline__ static TileOrder of_keys(const BackwardParams& p, int block) {
        const int heads = p.heads / p.heads_per_kv;
        return {blocks_of(p, p.seq_len_kv, block),
                heads * p.batch,
                p.l2_head_group,
                heads,
                true,
                p.packed};
    }

    // Blocks of queries of each head: the last queries see most keys.
    __device__ __forceinline__ static TileOrder of_queries(const BackwardParams& p, int block) {
        return {blocks_of(p, p.seq_len_q, block),
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
            const PackedBlock found = packed_block(packed, starts, block);
            return {known, found.number, head, 0, found.sequence};
        } else {
            const int batch = head / heads;
            return {known, block, head - batch * heads, batch, {}};
        }
    }

  private:
    __device__ __forceinline__ static int blocks_of(const BackwardParams& p, int rows, int block) {
        if constexpr (kPacked) return first_block(rows, p.packed.batch);
        return (rows + block - 1) / block;
    }
};

// Two tiles that the producer has passed on.
struct TileSlots {
    struct alignas(16) Slot {
        int of_tile[4], of_sequence[4];
    };
    Slot at[2];
    Mbarrier full[2], empty[2];
};

struct TileSlotsAddress {
    static constexpr int kReaders = 8;  // warps

    unsigned base;

    __device__ __forceinline__ unsigned tile(int i) const {
        return base + offset_of(&TileSlots::at) +
               static_cast<unsigned>(sizeof(TileSlots::Slot)) * i;
    }
    __device__ __forceinline__ unsigned full(int i) const {
        return base + offset_of(&TileSlots::full) + static_cast<unsigned>(sizeof(Mbarrier)) * i;
    }
    __device__ __forceinline__ unsigned empty(int i) const {
        return base + offset_of(&TileSlots::empty) + static_cast<unsigned>(sizeof(Mbarrier)) * i;
    }
    __device__ __forceinline__ void initialise() const {
        for (int i = 0; i < 2; ++i) {
            ptx::mbarrier_init(full(i), 1);
            ptx::mbarrier_init(empty(i), kReaders);
        }
    }
};

// The producer's tiles after the first.
template <bool kDynamic, bool kPacked>
struct ProducerTiles {
    using Tile = WorkTile<kPacked>;

    const TileOrder<kPacked> order;
    const TileSlotsAddress slots;
    SchedulerCounters* const counters;
    RingPosition<2> ring = {};
    int fetched = 0;

    // Ask for the next tile; its number takes about a microsecond to come.
    __device__ __forceinline__ void fetch_next() {
        if constexpr (kDynamic) fetched = gridDim.x + atomicAdd(&counters->taken, 1u);
    }

    __device__ __forceinline__ Tile next() {
        if constexpr (!kDynamic) return {-1, 0, 0, 0, {}};
        Tile found = order.decode(fetched);
        while (found.is_empty()) {
            fetch_next();
            found = order.decode(fetched);
        }
        ptx::mbarrier_wait(slots.empty(ring.stage), ring.parity ^ 1);
        const int words[4] = {found.number, found.block, found.head,
                              found.sequence.element(found.batch)};
        ptx::st_shared_v4(slots.tile(ring.stage), words);
        if constexpr (kPacked) {
            const Sequence<true>& of = found.sequence;
            const int more[4] = {of.first_query, of.n_queries, of.first_key, of.n_keys};
            ptx::st_shared_v4(slots.tile(ring.stage) + 16, more);
        }
        ptx::mbarrier_arrive(slots.full(ring.stage));
        ring.advance();
        return found;
    }

    // Every CTA is refused once; after the last refusal the counters are as they were.
    __device__ __forceinline__ void release_counters() const {
        if constexpr (kDynamic) {
            if (atomicAdd(&counters->finished, 1u) == gridDim.x - 1) {
                counters->taken = 0;
                counters->finished = 0;
            }
        }
    }
};

// The consumers' tiles after the first.
template <bool kDynamic, bool kPacked>
struct ConsumerTiles {
    using Tile = WorkTile<kPacked>;

    const TileSlotsAddress slots;
    RingPosition<2> ring = {};

    __device__ __forceinline__ Tile next() {
        if constexpr (!kDynamic) return {-1, 0, 0, 0, {}};
        ptx::mbarrier_wait(slots.full(ring.stage), ring.parity);
        // Two tiles later the slot's barrier is as it was: a lane that looked only then would wait
        // for ever.
        __syncwarp();
        int words[4] = {}, more[4] = {};
        if (threadIdx.x % 32 == 0) {
            ptx::ld_shared_v4(words, slots.tile(ring.stage));
            if constexpr (kPacked) ptx::ld_shared_v4(more, slots.tile(ring.stage) + 16);
            ptx::mbarrier_arrive(slots.empty(ring.stage));
        }
        ring.advance();
        // Broadcast, also so that the compiler knows it to be the same in all lanes.
        for (int& word : words) word = __shfl_sync(kAllLanes, word, 0);
        Tile found{words[0], words[1], words[2], words[3], {}};
        if constexpr (kPacked) {
            for (int& word : more) word = __shfl_sync(kAllLanes, word, 0);
            found.batch = 0;
            found.sequence = {more[0], more[1], more[2], more[3], more[3] - more[1], words[3]};
        }
        return found;
    }
};

}  // namespace fa_tune::sm90::backward
