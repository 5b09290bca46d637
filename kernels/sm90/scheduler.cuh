// Which tiles a cluster works on, in which order.  A tile is B_r query rows of a head for each of
// its CTAs.
//
// Tiles are numbered section by section; a section is section_heads neighbouring heads, whose
// keys and values are meant to stay in L2 together:
//
//     linear          heads one after another, row blocks ascending
//     longest first   row blocks descending, all heads of the section for each: with a causal
//                     mask the last rows see the most keys; without one this is linear
//     paired          heads one after another; row blocks n - 1 and 0, n - 2 and 1, ... follow
//                     each other, so that with a causal mask every pair is the same work
//
// single: one tile per cluster, handed out by the hardware.  static: cluster c of G takes tiles
// (pairs) c, c + G, c + 2G, ...  dynamic: as static for the first, then whatever is next when it
// asks.  Producers find out which tile is next and pass it on to the consumers, who have no time
// for divisions, through shared memory.
#pragma once

#include "ptx/cluster.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/shared_words.cuh"
#include "sm90/config.cuh"
#include "sm90/params.cuh"
#include "sm90/ring.cuh"
#include "sm90/shared_memory.cuh"

struct Tile {
    int number;     // -1: there is none left
    int row_block;  // of this CTA
    int head;       // of its batch element
    int batch;
};

template <Sm90Config CFG>
__device__ __forceinline__ int rank_in_cluster() {
    return CFG.cluster == 1 ? 0 : blockIdx.x % CFG.cluster;
}

template <Sm90Config CFG, WorkloadTraits TRAITS>
struct TileOrder {
    static constexpr Order kOrder =
        CFG.order == Order::LONGEST_FIRST && !TRAITS.causal ? Order::LINEAR : CFG.order;

    const ForwardParams& p;

    __device__ __forceinline__ static int clusters() { return gridDim.x / CFG.cluster; }

    __device__ __forceinline__ Tile first() const {
        const int cluster = blockIdx.x / CFG.cluster;
        return decode(kOrder == Order::PAIRED ? 2 * cluster : cluster);
    }

    // Pairs of a head; with an odd number of row blocks the last one lacks its second half.
    __device__ __forceinline__ int pairs() const { return (p.row_blocks + 1) / 2; }

    // The tile after `number` of a cluster that takes every n-th of n clusters.
    __device__ __forceinline__ int following(int number) const {
        if constexpr (kOrder == Order::PAIRED) {
            const bool has_second = number / 2 % pairs() * 2 + 1 != p.row_blocks;
            return number % 2 == 0 && has_second ? number + 1 : number / 2 * 2 + 2 * clusters();
        }
        return number + clusters();
    }

    __device__ __forceinline__ Tile decode(int number) const {
        int row, head;
        bool valid = number < p.row_blocks * p.heads_in_all;
        if constexpr (kOrder == Order::LINEAR) {
            head = number / p.row_blocks;
            row = number - head * p.row_blocks;
        } else if constexpr (kOrder == Order::LONGEST_FIRST) {
            const int section_tiles = p.section_heads * p.row_blocks;
            const int section = number / section_tiles;
            const int in_section = number - section * section_tiles;
            const int first_head = section * p.section_heads;
            const int heads = max(1, min(p.section_heads, p.heads_in_all - first_head));
            const int from_last = in_section / heads;
            row = p.row_blocks - 1 - from_last;
            head = first_head + in_section - from_last * heads;
        } else {
            const int pair = number / 2;
            head = pair / pairs();
            const int in_head = pair - head * pairs();
            row = number % 2 == 0 ? p.row_blocks - 1 - in_head : in_head;
            valid = number < p.heads_in_all * pairs() * 2;
        }
        const int batch = head / p.heads;
        return Tile{valid ? number : -1, row * CFG.cluster + rank_in_cluster<CFG>(),
                    head - batch * p.heads, batch};
    }
};

// The slots through which tiles go from the producer to the others of the cluster.  Rank 0's
// producer writes; its "empty" barrier hears from all who read, and so it may write to all.
template <Sm90Config CFG>
struct TileSlots {
    using Shared = SharedMemory<CFG>;
    static constexpr int kReaders = 4 * CFG.consumers * CFG.cluster + CFG.cluster - 1;

    const unsigned smem;
    RingPosition<2> ring;

    // By rank 0's producer.
    __device__ __forceinline__ void write(const Tile& tile) {
        ptx::mbarrier_wait(smem + Shared::kTileEmpty + 8 * ring.stage, ring.parity ^ 1);
        const unsigned full = smem + Shared::kTileFull + 8 * ring.stage;
        const unsigned slot = smem + Shared::kTiles + Shared::kTileSlotBytes * ring.stage;
        const int words[4] = {tile.number, tile.row_block, tile.head, tile.batch};
        if constexpr (CFG.cluster == 1) {
            ptx::store_shared_v4(slot, words);
            ptx::mbarrier_arrive(full);
        } else {
#pragma unroll
            for (int rank = 0; rank < CFG.cluster; ++rank) {
                const unsigned barrier = ptx::in_cta(full, rank);
                const int of_rank[4] = {tile.number, tile.row_block + rank, tile.head, tile.batch};
                ptx::mbarrier_arrive_expect_tx_cluster(barrier, Shared::kTileSlotBytes);
                ptx::store_async_cluster(ptx::in_cta(slot, rank), barrier, of_rank);
            }
        }
        ring.advance();
    }

    // By everybody else, a warp or one thread; of a warp lane 0 has the tile.
    template <bool kWarp>
    __device__ __forceinline__ Tile read() {
        ptx::mbarrier_wait(smem + Shared::kTileFull + 8 * ring.stage, ring.parity);
        // Two tiles later the slot's barrier is as it was: a lane that looked only then would wait
        // for ever.  The compiler, too, may then forget about lanes that come later, and leaves
        // out a copy of what follows.
        if constexpr (kWarp) __syncwarp();
        int words[4] = {};
        if (!kWarp || threadIdx.x % 32 == 0) {
            ptx::load_shared_v4(words, smem + Shared::kTiles + Shared::kTileSlotBytes * ring.stage);
            const unsigned empty = smem + Shared::kTileEmpty + 8 * ring.stage;
            if constexpr (CFG.cluster == 1) {
                ptx::mbarrier_arrive(empty);
            } else {
                ptx::mbarrier_arrive_cluster(ptx::in_cta(empty, 0));
            }
        }
        ring.advance();
        return Tile{words[0], words[1], words[2], words[3]};
    }
};

// The consumers' tiles after the first.
template <Sm90Config CFG>
struct ConsumerTiles {
    TileSlots<CFG> slots;

    __device__ __forceinline__ Tile next() {
        if constexpr (CFG.scheduler == Scheduler::SINGLE) return Tile{-1, 0, 0, 0};
        const Tile tile = slots.template read<true>();
        // Broadcast, also so that the compiler knows it to be the same in all lanes.
        constexpr unsigned kAll = 0xffffffffu;
        return Tile{__shfl_sync(kAll, tile.number, 0), __shfl_sync(kAll, tile.row_block, 0),
                    __shfl_sync(kAll, tile.head, 0), __shfl_sync(kAll, tile.batch, 0)};
    }
};

// The producer's tiles after the first.
template <Sm90Config CFG, WorkloadTraits TRAITS>
struct ProducerTiles {
    const TileOrder<CFG, TRAITS> order;
    TileSlots<CFG> slots;
    int asked = 0;

    __device__ __forceinline__ static bool leads() { return rank_in_cluster<CFG>() == 0; }

    // Ask for the next tile while there is work on this one.
    __device__ __forceinline__ void ask() {
        if constexpr (CFG.scheduler == Scheduler::DYNAMIC) {
            if (leads()) asked = order.clusters() + atomicAdd(&order.p.counters[0], 1u);
        }
    }

    __device__ __forceinline__ Tile next(const Tile& tile) {
        if constexpr (CFG.scheduler == Scheduler::SINGLE) return Tile{-1, 0, 0, 0};
        if (!leads()) return slots.template read<false>();
        const Tile found = order.decode(
            CFG.scheduler == Scheduler::DYNAMIC ? asked : order.following(tile.number));
        slots.write(found);
        return found;
    }

    // Every cluster is refused once; after the last refusal the counters are as they were.
    __device__ __forceinline__ void finish() const {
        if constexpr (CFG.scheduler == Scheduler::DYNAMIC) {
            if (leads() && atomicAdd(&order.p.counters[1], 1u) == order.clusters() - 1) {
                order.p.counters[0] = 0;
                order.p.counters[1] = 0;
            }
        }
    }
};

// Key blocks [0, end) of a tile are visited, from the last one down.  A tile whose rows see no
// key visits block 0, all masked: every tile takes the same path.  All CTAs of a cluster visit
// those of its last one, for they load them together.
template <Sm90Config CFG, WorkloadTraits TRAITS>
__device__ __forceinline__ int key_blocks(const ForwardParams& p, const Tile& tile) {
    int keys = p.seq_len_kv;
    if constexpr (TRAITS.causal) {
        const int end = tile.row_block / CFG.cluster * CFG.cluster + CFG.cluster;
        const int last_row = min(end * CFG.B_r, p.seq_len_q) - 1;
        keys = max(1, min(keys, last_row + p.diagonal + 1));
    }
    return (keys + CFG.B_c - 1) / CFG.B_c;
}
