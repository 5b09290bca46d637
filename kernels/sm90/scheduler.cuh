// Which tiles a CTA works on, in which order.
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
// single: one tile per CTA, handed out by the hardware.  static: CTA c of G takes tiles (pairs)
// c, c + G, c + 2G, ...  dynamic: as static for the first, then whatever is next when it asks.
#pragma once

#include "ptx/mbarrier.cuh"
#include "sm90/config.cuh"
#include "sm90/params.cuh"
#include "sm90/ring.cuh"
#include "sm90/shared_memory.cuh"

struct Tile {
    int number;
    int row_block;
    int head;  // of all heads of all batch elements
};

template <Sm90Config CFG, WorkloadTraits TRAITS>
struct TileOrder {
    static constexpr Order kOrder =
        CFG.order == Order::LONGEST_FIRST && !TRAITS.causal ? Order::LINEAR : CFG.order;

    const ForwardParams& p;

    __device__ __forceinline__ int first() const {
        return kOrder == Order::PAIRED ? 2 * blockIdx.x : blockIdx.x;
    }

    __device__ __forceinline__ bool valid(int number) const {
        if constexpr (kOrder == Order::PAIRED) return number < p.heads_in_all * pairs() * 2;
        return number < p.row_blocks * p.heads_in_all;
    }

    // Pairs of a head; with an odd number of row blocks the last one lacks its second half.
    __device__ __forceinline__ int pairs() const { return (p.row_blocks + 1) / 2; }

    // The tile after `number` of a CTA that takes every gridDim.x-th.
    __device__ __forceinline__ int following(int number) const {
        if constexpr (kOrder == Order::PAIRED) {
            const bool has_second = number / 2 % pairs() * 2 + 1 != p.row_blocks;
            return number % 2 == 0 && has_second ? number + 1 : number / 2 * 2 + 2 * gridDim.x;
        }
        return number + gridDim.x;
    }

    __device__ __forceinline__ Tile decode(int number) const {
        if constexpr (kOrder == Order::LINEAR) {
            const int head = number / p.row_blocks;
            return Tile{number, number - head * p.row_blocks, head};
        } else if constexpr (kOrder == Order::LONGEST_FIRST) {
            const int section_tiles = p.section_heads * p.row_blocks;
            const int section = number / section_tiles;
            const int in_section = number - section * section_tiles;
            const int first_head = section * p.section_heads;
            const int heads = max(1, min(p.section_heads, p.heads_in_all - first_head));
            const int row = in_section / heads;
            return Tile{number, p.row_blocks - 1 - row, first_head + in_section - row * heads};
        } else {
            const int pair = number / 2;
            const int head = pair / pairs();
            const int in_head = pair - head * pairs();
            return Tile{number, number % 2 == 0 ? p.row_blocks - 1 - in_head : in_head, head};
        }
    }
};

// The consumers' tiles.  With a dynamic scheduler the producer asks for tiles and passes their
// numbers on through shared memory.
template <Sm90Config CFG, WorkloadTraits TRAITS>
struct ConsumerTiles {
    const TileOrder<CFG, TRAITS> order;
    const unsigned smem;
    RingPosition<2> ring;

    __device__ __forceinline__ Tile first() const { return order.decode(order.first()); }
    __device__ __forceinline__ bool valid(const Tile& tile) const {
        return CFG.scheduler != Scheduler::SINGLE && order.valid(tile.number);
    }

    __device__ __forceinline__ Tile next(const Tile& tile) {
        if constexpr (CFG.scheduler == Scheduler::SINGLE) return tile;
        if constexpr (CFG.scheduler == Scheduler::STATIC)
            return order.decode(order.following(tile.number));
        using Shared = SharedMemory<CFG>;
        ptx::mbarrier_wait(smem + Shared::kTileFull + 8 * ring.stage, ring.parity);
        const int number = ptx::load_shared(smem + Shared::kTiles + 8 * ring.stage);
        __syncwarp();
        if (threadIdx.x % 32 == 0) {
            ptx::mbarrier_arrive(smem + Shared::kTileEmpty + 8 * ring.stage);
        }
        ring.advance();
        return order.decode(__shfl_sync(0xffffffffu, number, 0));
    }
};

// The producer's tiles.
template <Sm90Config CFG, WorkloadTraits TRAITS>
struct ProducerTiles {
    const TileOrder<CFG, TRAITS> order;
    const unsigned smem;
    RingPosition<2> ring;
    int asked = 0;

    __device__ __forceinline__ Tile first() const { return order.decode(order.first()); }
    __device__ __forceinline__ bool valid(const Tile& tile) const {
        return order.valid(tile.number);
    }

    // Ask for the next tile while there is work on this one.
    __device__ __forceinline__ void ask() {
        if constexpr (CFG.scheduler == Scheduler::DYNAMIC) {
            asked = gridDim.x + atomicAdd(&order.p.counters[0], 1u);
        }
    }

    __device__ __forceinline__ Tile next(const Tile& tile) {
        if constexpr (CFG.scheduler == Scheduler::SINGLE) return Tile{0x7fffffff, 0, 0};
        if constexpr (CFG.scheduler == Scheduler::STATIC)
            return order.decode(order.following(tile.number));
        using Shared = SharedMemory<CFG>;
        ptx::mbarrier_wait(smem + Shared::kTileEmpty + 8 * ring.stage, ring.parity ^ 1);
        ptx::store_shared(smem + Shared::kTiles + 8 * ring.stage, asked);
        ptx::mbarrier_arrive(smem + Shared::kTileFull + 8 * ring.stage);
        ring.advance();
        return order.decode(asked);
    }

    // Every CTA is refused once; after the last refusal the counters are as they were.
    __device__ __forceinline__ void finish() const {
        if constexpr (CFG.scheduler == Scheduler::DYNAMIC) {
            if (atomicAdd(&order.p.counters[1], 1u) == gridDim.x - 1) {
                order.p.counters[0] = 0;
                order.p.counters[1] = 0;
            }
        }
    }
};

// Key blocks [0, end) of a tile are visited, from the last one down.  A tile whose rows see no
// key visits block 0, all masked: every tile takes the same path.
template <Sm90Config CFG, WorkloadTraits TRAITS>
__device__ __forceinline__ int key_blocks(const ForwardParams& p, const Tile& tile) {
    int keys = p.seq_len_kv;
    if constexpr (TRAITS.causal) {
        const int last_row = min((tile.row_block + 1) * CFG.B_r, p.seq_len_q) - 1;
        keys = max(1, min(keys, last_row + p.diagonal + 1));
    }
    return (keys + CFG.B_c - 1) / CFG.B_c;
}
