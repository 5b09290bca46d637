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

#include "common/backward/params.cuh"
#include "common/backward/tile_order.cuh"
#include "common/constants.cuh"
#include "common/pipeline.cuh"
#include "common/problem.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/shared_words.cuh"

namespace fa_tune::sm90::backward {

constexpr int kConsumerWarps = 8;

// Two tiles that the producer has passed on.
struct TileSlots {
    struct alignas(16) Slot {
        int of_tile[4], of_sequence[4];
    };
    Slot at[2];
    Mbarrier full[2], empty[2];
};

struct TileSlotsAddress {
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
            ptx::mbarrier_init(empty(i), kConsumerWarps);
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
