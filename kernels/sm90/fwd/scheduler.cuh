// Which work tiles a CTA does, and how its warpgroups hear of them.  common/work_tile.cuh has the
// order of tiles.
//
//     single     one tile per CTA, handed out by the hardware
//     static     CTA c of G takes tiles c, c + G, c + 2G, ...
//     dynamic    as static for the first, then whatever is next when it asks
//
// The producer finds out which tile is next and passes it on to the consumers, who have no time
// for divisions, through two slots in shared memory:
//
//     producer    write slot 0 | write slot 1 | wait for slot 0 to be empty, write | ...
//     consumers                | read slot 0  | read slot 1 | ...
#pragma once

#include "common/constants.cuh"
#include "common/mask.cuh"
#include "common/member_order.cuh"
#include "common/pipeline.cuh"
#include "common/problem.cuh"
#include "common/sequence.cuh"
#include "common/work_tile.cuh"
#include "ptx/bar.cuh"
#include "ptx/cluster.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/shared_words.cuh"
#include "sm90/fwd/config.cuh"
#include "sm90/fwd/named_barriers.cuh"
#include "sm90/fwd/params.cuh"
#include "sm90/fwd/shared_memory.cuh"

namespace fa_tune::sm90 {

constexpr WorkTile kNoWorkTile{-1, 0, 0, 0};

// The consumers' first warpgroup.  Others have nothing to do with the order of a packed batch: they
// would take its issue slots.
struct OrderingWarpgroup {
    static constexpr int kThreads = 128;
    static constexpr int kFirst = 128;
    // Bulk copies come there next.  At once, for after the list it would wait for that.
    __device__ __forceinline__ static void wrote() { ptx::fence_proxy_async_shared(); }
    __device__ __forceinline__ static void sync() {
        ptx::bar_sync(static_cast<int>(NamedBarrier::ORDER), kThreads);
    }
};

template <Sm90Config CFG, WorkloadTraits TRAITS>
struct TileOrder {
    // Without a mask all tiles are as long.
    static constexpr bool kLongestFirst = CFG.order == Order::LONGEST_FIRST && TRAITS.causal;

    const ForwardParams& p;

    // A packed batch is ordered where V comes, so that Q and K may come meanwhile; where there is
    // no room, where Q comes.
    static constexpr bool kOrdersInV = sizeof(SharedMemory<CFG>::v) >= kOrderBytes;
    // Whether these first copies are those of equal sequences before the lengths are known.
    static constexpr bool kGuesses = kOrdersInV && CFG.scheduler != Scheduler::SINGLE;

    __device__ __forceinline__ Equals equals() const {
        Equals equals = Equals::of<CFG.B_r()>(p);
        equals.possible = kGuesses && equals.possible;
        return equals;
    }

    // The first tile of a packed batch that was ordered, when all who read it and all who ordered
    // have met.
    __device__ __forceinline__ WorkTile found(const SharedAddress<CFG>& smem,
                                              Sequence<true>& sequence) const {
        return placed(blockIdx.x, found_tile(scratch(smem) + kFoundAt), sequence);
    }

    // The tile `number` of a packed batch, which comes after `last`, and what it belongs to.  Its
    // `batch` is the place of its sequence in the order of work.
    __device__ __forceinline__ WorkTile decode_packed(int number, const WorkTile& last,
                                                      Sequence<true>& sequence) const {
        return placed(number, packed_tile<kLongestFirst>(number, last.batch, p), sequence);
    }

    // The same where all sequences are equal; `batch` is -1 less the number of its sequence.
    __device__ __forceinline__ WorkTile decode_equal(int number, const Equals& equals,
                                                     Sequence<true>& sequence) const {
        PackedTile tile = equals.tile<CFG.B_r(), kLongestFirst>(number, p);
        tile.place = -1 - tile.place;
        return placed(number, tile, sequence);
    }

    // The next tile of a CTA with the static scheduler.
    __device__ __forceinline__ int following(int number) const {
        return number + static_cast<int>(gridDim.x);
    }

    __device__ __forceinline__ WorkTile decode(int number) const {
        int m_block, head;
        const bool valid = number < p.m_blocks * p.total_heads;
        if constexpr (kLongestFirst) {
            longest_first_tile(number, p, m_block, head);
        } else {
            linear_tile(number, p, m_block, head);
        }
        const int batch = head / p.heads;
        return {valid ? number : -1, m_block, head - batch * p.heads, batch};
    }

    __device__ __forceinline__ static WorkTile placed(int number, const PackedTile& tile,
                                                      Sequence<true>& sequence) {
        sequence = tile.sequence;
        return {tile.m_block < 0 ? -1 : number, tile.m_block, tile.head, tile.place};
    }

    // Where a packed batch is ordered.
    __device__ __forceinline__ static unsigned scratch(const SharedAddress<CFG>& smem) {
        return kOrdersInV ? smem.v(0) : smem.q(0);
    }
};

template <Sm90Config CFG>
struct WorkTileSlots {
    static constexpr int kReaders = 4 * CFG.mma_warpgroups;  // warps

    const SharedAddress<CFG> smem;
    RingPosition<2> ring;

    __device__ __forceinline__ void write(const WorkTile& tile) {
        ptx::mbarrier_wait(smem.work_tile_empty(ring.stage), ring.parity ^ 1);
        const unsigned full = smem.work_tile_full(ring.stage);
        const int words[4] = {tile.number, tile.m_block, tile.head, tile.batch};
        ptx::st_shared_v4(smem.work_tile(ring.stage), words);
        ptx::mbarrier_arrive(full);
        ring.advance();
    }

    // What consumers need to know of a tile of a packed batch.
    template <WorkloadTraits TRAITS>
    __device__ __forceinline__ static WorkTile packed(const WorkTile& tile,
                                                      const Sequence<true>& sequence) {
        if constexpr (tells_place<TRAITS>()) return tile;
        const Sequence<true> own = sequence.from(tile.m_block * CFG.B_r());
        return {tile.number < 0 ? -1 : tile.head, own.first_query, own.n_queries, own.n_keys};
    }

    // ... becomes the first tile of the sequence that begins with it.
    template <WorkloadTraits TRAITS>
    __device__ __forceinline__ static WorkTile unpacked(const ForwardParams& p,
                                                        const WorkTile& told,
                                                        Sequence<true>& sequence) {
        if constexpr (tells_place<TRAITS>()) {
            if (told.number < 0) return told;
            sequence = told.batch < 0 ? Equals::of<CFG.B_r()>(p).sequence(-1 - told.batch)
                                      : Sequence<true>::of(p, told.batch);
            return told;
        }
        const int queries = told.head, keys = told.batch;
        sequence = {told.m_block, queries, 0, keys, keys - queries, 0};
        return {told.number, 0, told.number, 0};
    }

    // Scores that know their places have those in the whole sequence, which its list tells.
    template <WorkloadTraits TRAITS>
    __device__ static constexpr bool tells_place() {
        return TRAITS.alibi || TRAITS.hook;
    }

    // By a warp, of which lane 0 has the tile.
    __device__ __forceinline__ WorkTile read() {
        ptx::mbarrier_wait(smem.work_tile_full(ring.stage), ring.parity);
        // Two tiles later the slot's barrier is as it was: a lane that looked only then would wait
        // for ever.  The compiler, too, may then forget about lanes that come later, and leaves
        // out a copy of what follows.
        __syncwarp();
        int words[4] = {};
        if (threadIdx.x % 32 == 0) {
            ptx::ld_shared_v4(words, smem.work_tile(ring.stage));
            ptx::mbarrier_arrive(smem.work_tile_empty(ring.stage));
        }
        ring.advance();
        return {words[0], words[1], words[2], words[3]};
    }
};

// The consumers' tiles after the first.
template <Sm90Config CFG, WorkloadTraits TRAITS>
struct ConsumerTiles {
    WorkTileSlots<CFG> slots;

    // Of a packed batch with what it belongs to.
    __device__ __forceinline__ WorkTile next(const ForwardParams& p,
                                             Sequence<TRAITS.packed>& sequence) {
        if constexpr (TRAITS.packed) {
            const WorkTile told = next();
            return WorkTileSlots<CFG>::template unpacked<TRAITS>(p, told, sequence);
        } else {
            return next();
        }
    }

    __device__ __forceinline__ WorkTile next() {
        if constexpr (CFG.scheduler == Scheduler::SINGLE) return kNoWorkTile;
        const WorkTile tile = slots.read();
        // Broadcast, also so that the compiler knows it to be the same in all lanes.
        return {__shfl_sync(kAllLanes, tile.number, 0), __shfl_sync(kAllLanes, tile.m_block, 0),
                __shfl_sync(kAllLanes, tile.head, 0), __shfl_sync(kAllLanes, tile.batch, 0)};
    }
};

// The producer's tiles after the first.
template <Sm90Config CFG, WorkloadTraits TRAITS>
struct ProducerTiles {
    const TileOrder<CFG, TRAITS> order;
    WorkTileSlots<CFG> slots;
    int fetched = 0;

    __device__ __forceinline__ static bool has_one_tile() {
        return CFG.scheduler == Scheduler::SINGLE;
    }

    // Ask for the next tile; its number takes about a microsecond to come.
    __device__ __forceinline__ void fetch_next() {
        if constexpr (CFG.scheduler == Scheduler::DYNAMIC) {
            fetched = gridDim.x + atomicAdd(&order.p.counters[0], 1u);
        }
    }

    // The same of a packed batch, with what it belongs to, while its number may still be on its
    // way; before the last load of `tile`, so that the search for its sequence costs no time.
    // `equal`: all sequences are equal to the tile's.
    __device__ __forceinline__ WorkTile find_next(const WorkTile& tile,
                                                  const Sequence<true>& tile_sequence, bool equal,
                                                  Sequence<true>& sequence) {
        if constexpr (CFG.scheduler == Scheduler::SINGLE) return kNoWorkTile;
        const int number =
            CFG.scheduler == Scheduler::DYNAMIC ? fetched : order.following(tile.number);
        // Not what is the same for all tiles, which would keep registers through the loop.
        const Equals equals{tile_sequence.n_queries, tile_sequence.n_keys, true};
        const WorkTile found = equal ? order.decode_equal(number, equals, sequence)
                                     : order.decode_packed(number, tile, sequence);
        slots.write(WorkTileSlots<CFG>::template packed<TRAITS>(found, sequence));
        return found;
    }

    __device__ __forceinline__ WorkTile next(const WorkTile& tile) {
        if constexpr (CFG.scheduler == Scheduler::SINGLE) return kNoWorkTile;
        // Never taken.  Without it NVRTC writes the advance of the slots in another way, and the
        // machine code is not the one that was measured.
        if (has_one_tile()) return kNoWorkTile;
        const WorkTile found = order.decode(
            CFG.scheduler == Scheduler::DYNAMIC ? fetched : order.following(tile.number));
        slots.write(found);
        return found;
    }

    // Every CTA is refused once; after the last refusal the counters are as they were.
    __device__ __forceinline__ void release_counters() const {
        if constexpr (CFG.scheduler == Scheduler::DYNAMIC) {
            if (atomicAdd(&order.p.counters[1], 1u) == gridDim.x - 1) {
                order.p.counters[0] = 0;
                order.p.counters[1] = 0;
            }
        }
    }
};

// The first of a warpgroup's 64 rows.
template <Sm90Config CFG>
__device__ __forceinline__ int first_row(const WorkTile& tile, int warpgroup) {
    constexpr int kRows = CFG.B_r();
    return tile.m_block * kRows + 64 * warpgroup;
}

// Key blocks [0, end) of a tile are visited, with a window [first_key_block, end), from the last
// one down.  A tile whose rows see no key visits one block, all masked: every tile takes the same
// path.
template <Sm90Config CFG, WorkloadTraits TRAITS>
__device__ __forceinline__ int key_blocks(const ForwardParams& p, const WorkTile& tile,
                                          const Sequence<TRAITS.packed>& sequence) {
    constexpr int kRows = CFG.B_r();
    int keys = sequence.keys(p);
    if constexpr (TRAITS.causal) {
        const int end = tile.m_block + 1;
        const int last_row = min(end * kRows, sequence.queries(p)) - 1;
        keys = max(1, min(keys, last_row + sequence.diagonal(p) + 1));
    } else if constexpr (TRAITS.packed) {
        keys = max(1, keys);
    }
    return (keys + CFG.B_c - 1) / CFG.B_c;
}

// With a window: of key blocks before this one no row of the tile sees anything; `end` is that of
// key_blocks.
template <Sm90Config CFG, WorkloadTraits TRAITS>
__device__ __forceinline__ int first_key_block(const ForwardParams& p, const WorkTile& tile,
                                               const Sequence<TRAITS.packed>& sequence, int end) {
    const int key = first_key_seen(first_row<CFG>(tile, 0), sequence.first_diagonal(p));
    return min(end - 1, max(0, key) / CFG.B_c);
}

// Key blocks of a tile, from end - 1 down to first.
struct KeyBlocks {
    int first, end;
};

// Those of a CTA of a cluster, which may be none.
template <Sm90Config CFG, WorkloadTraits TRAITS>
__device__ __forceinline__ KeyBlocks key_blocks_of_cta(const ForwardParams& p, const WorkTile& tile,
                                                       const Sequence<TRAITS.packed>& sequence) {
    const int end = key_blocks<CFG, TRAITS>(p, tile, sequence);
    const int first = TRAITS.window ? first_key_block<CFG, TRAITS>(p, tile, sequence, end) : 0;
    const int blocks = end - first, rank = ptx::cluster_rank();
    return {first + blocks * rank / CFG.splits, first + blocks * (rank + 1) / CFG.splits};
}

}  // namespace fa_tune::sm90
