// Which tiles a CTA does, and how its warpgroups hear of them.
//
// A tile is a block of keys of one KV head, or for dQ a block of queries of one head.  Groups of
// neighbouring heads come one after another; within a group the longest tiles come first, of all
// its heads (common/work_tile.cuh).
//
// Without `dynamic` a CTA has one tile.  With it, the producer asks a counter for the next one and
// passes it on to the consumers, who have no time for divisions, through two slots in shared
// memory.
#pragma once

#include "common/constants.cuh"
#include "common/pipeline.cuh"
#include "common/problem.cuh"
#include "common/work_tile.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/shared_words.cuh"
#include "sm90/bwd/params.cuh"

namespace fa_tune::sm90::backward {

struct WorkTile {
    int number;  // -1: there is none left
    int block;   // of keys or queries
    int head;    // of its batch element
    int batch;
};

constexpr WorkTile kNoWorkTile{-1, 0, 0, 0};

// All tiles of a launch.
struct TileOrder {
    int m_blocks;     // of a head
    int total_heads;  // with those of the batch
    int l2_head_group;
    int heads;
    bool first_is_longest;  // of the blocks of a head, otherwise the last

    // Blocks of keys of each KV head: with a causal mask the first keys are seen by most queries.
    __device__ __forceinline__ static TileOrder of_keys(const BackwardParams& p, int block) {
        const int heads = p.heads / p.heads_per_kv;
        return {(p.seq_len_kv + block - 1) / block, heads * p.batch, p.l2_head_group, heads, true};
    }

    // Blocks of queries of each head: the last queries see most keys.
    __device__ __forceinline__ static TileOrder of_queries(const BackwardParams& p, int block) {
        return {(p.seq_len_q + block - 1) / block, p.heads * p.batch,
                p.l2_head_group * p.heads_per_kv, p.heads, false};
    }

    __device__ __forceinline__ WorkTile decode(int number) const {
        int block, head;
        longest_first_tile(number, *this, block, head);
        if (first_is_longest) block = m_blocks - 1 - block;
        const int batch = head / heads;
        return {number < m_blocks * total_heads ? number : -1, block, head - batch * heads, batch};
    }
};

// Two tiles that the producer has passed on.
struct TileSlots {
    WorkTile at[2];
    Mbarrier full[2], empty[2];
};

struct TileSlotsAddress {
    static constexpr int kReaders = 8;  // warps

    unsigned base;

    __device__ __forceinline__ unsigned tile(int i) const {
        return base + offset_of(&TileSlots::at) + static_cast<unsigned>(sizeof(WorkTile)) * i;
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
template <bool kDynamic>
struct ProducerTiles {
    const TileOrder order;
    const TileSlotsAddress slots;
    SchedulerCounters* const counters;
    RingPosition<2> ring = {};
    int fetched = 0;

    // Ask for the next tile; its number takes about a microsecond to come.
    __device__ __forceinline__ void fetch_next() {
        if constexpr (kDynamic) fetched = gridDim.x + atomicAdd(&counters->taken, 1u);
    }

    __device__ __forceinline__ WorkTile next() {
        if constexpr (!kDynamic) return kNoWorkTile;
        const WorkTile found = order.decode(fetched);
        ptx::mbarrier_wait(slots.empty(ring.stage), ring.parity ^ 1);
        const int words[4] = {found.number, found.block, found.head, found.batch};
        ptx::st_shared_v4(slots.tile(ring.stage), words);
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
template <bool kDynamic>
struct ConsumerTiles {
    const TileSlotsAddress slots;
    RingPosition<2> ring = {};

    __device__ __forceinline__ WorkTile next() {
        if constexpr (!kDynamic) return kNoWorkTile;
        ptx::mbarrier_wait(slots.full(ring.stage), ring.parity);
        // Two tiles later the slot's barrier is as it was: a lane that looked only then would wait
        // for ever.
        __syncwarp();
        int words[4] = {};
        if (threadIdx.x % 32 == 0) {
            ptx::ld_shared_v4(words, slots.tile(ring.stage));
            ptx::mbarrier_arrive(slots.empty(ring.stage));
        }
        ring.advance();
        // Broadcast, also so that the compiler knows it to be the same in all lanes.
        return {__shfl_sync(kAllLanes, words[0], 0), __shfl_sync(kAllLanes, words[1], 0),
                __shfl_sync(kAllLanes, words[2], 0), __shfl_sync(kAllLanes, words[3], 0)};
    }
};

}  // namespace fa_tune::sm90::backward
