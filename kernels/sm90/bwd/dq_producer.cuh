// The producer of the kernel for dQ: one thread that loads Q and dO of each tile, of each
// warpgroup's queries apart, and K and V of every step by bulk copies.
//
//     K(0) Q V(0) dO   K(1) V(1)   K(2) ...
#pragma once

#include "common/backward/mask.cuh"
#include "common/pipeline.cuh"
#include "ptx/cp_async_bulk.cuh"
#include "ptx/mbarrier.cuh"
#include "sm90/bwd/cluster_share.cuh"
#include "sm90/bwd/scheduler.cuh"
#include "sm90/bwd/shared_memory.cuh"

namespace fa_tune::sm90::backward {

constexpr int kDqRows = 128;  // queries of a tile

template <Sm90BackwardConfig CFG, WorkloadTraits TRAITS>
struct DqProducer {
    using Layout = DqSharedMemory<CFG>;
    using Tile = WorkTile<TRAITS.packed>;

    const BackwardParams& p;
    const ptx::TensorMap &q_map, &k_map, &v_map, &do_map;
    const DqSharedAddress<CFG> smem;
    RingPosition<1> q_ring = {};
    RingPosition<Layout::kKStages> k_ring = {};
    RingPosition<Layout::kVStages> v_ring = {};

    __device__ __forceinline__ void run(const Tile& first) {
        ProducerTiles<CFG.dynamic, TRAITS.packed> tiles{
            TileOrder<TRAITS.packed>::of_queries(p, kDqRows), smem.tiles(),
            reinterpret_cast<SchedulerCounters*>(p.counters)};
        for (Tile tile = first; tile.number >= 0; tile = tiles.next()) {
            const int row = tile.block * kDqRows;
            const Range blocks = share_of_cta<CFG.dq_cluster>(
                keys_of_queries<TRAITS>(p, tile.sequence, {row, row + kDqRows})
                    .template blocks<CFG.dq_keys>());
            const int kv_head = tile.head / p.heads_per_kv;
            if (blocks.count() == 0) tiles.fetch_next();
#pragma unroll 1
            for (int block = blocks.first; block < blocks.end; ++block) {
                // As late as its number is there in time, see producer.cuh.
                if (block + 1 == blocks.end) tiles.fetch_next();
                load_k(block, kv_head, tile);
                if (block == blocks.first) load_q(row, tile);
                load_v(block, kv_head, tile);
                if (block == blocks.first) {
                    load_do(row, tile);
                    q_ring.advance();
                }
            }
        }
        tiles.release_counters();
    }

    __device__ __forceinline__ void load_q(int row, const Tile& tile) const {
#pragma unroll
        for (int w = 0; w < 2; ++w) {
            ptx::mbarrier_wait(smem.q_empty(w), q_ring.parity ^ 1);
            load<typename Layout::QTile>(
                smem.q(w), q_map, smem.q_full(w), ptx::kEvictFirst, tile.head,
                tile.sequence.template q_box<64>(row + 64 * w, tile.batch));
        }
    }

    __device__ __forceinline__ void load_do(int row, const Tile& tile) const {
#pragma unroll
        for (int w = 0; w < 2; ++w) {
            ptx::mbarrier_wait(smem.do_empty(w), q_ring.parity ^ 1);
            load<typename Layout::DoTile>(
                smem.d_o(w), do_map, smem.do_full(w), ptx::kEvictFirst, tile.head,
                tile.sequence.template q_box<64>(row + 64 * w, tile.batch));
        }
    }

    __device__ __forceinline__ void load_k(int block, int kv_head, const Tile& tile) {
        ptx::mbarrier_wait(smem.k_empty(k_ring.stage), k_ring.parity ^ 1);
        load<typename Layout::KTile>(
            smem.k(k_ring.stage), k_map, smem.k_full(k_ring.stage), ptx::kEvictLast, kv_head,
            tile.sequence.template kv_box<CFG.dq_keys>(block * CFG.dq_keys, tile.batch));
        k_ring.advance();
    }

    __device__ __forceinline__ void load_v(int block, int kv_head, const Tile& tile) {
        ptx::mbarrier_wait(smem.v_empty(v_ring.stage), v_ring.parity ^ 1);
        load<typename Layout::VTile>(
            smem.v(v_ring.stage), v_map, smem.v_full(v_ring.stage), ptx::kEvictLast, kv_head,
            tile.sequence.template kv_box<CFG.dq_keys>(block * CFG.dq_keys, tile.batch));
        v_ring.advance();
    }

    template <class Block>
    __device__ __forceinline__ static void load(unsigned to, const ptx::TensorMap& map,
                                                unsigned full, unsigned long long policy, int head,
                                                const BoxPlace& place) {
        ptx::mbarrier_arrive_expect_tx(full, Block::kBytes);
#pragma unroll
        for (int panel = 0; panel < Block::kPanels; ++panel) {
            load_box<TRAITS.packed>(to + panel * Block::kPanelBytes, map, full, policy, 64 * panel,
                                    head, place);
        }
    }
};

}  // namespace fa_tune::sm90::backward
