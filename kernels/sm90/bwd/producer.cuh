// The producer of the kernel for dK and dV: one thread that loads, by bulk copies, K and V of each
// tile and for every step Q with its LSE and dO with its D.
//
//     a CTA's only tile    K  Q(0) V dO(0)  Q(1) dO(1)  Q(2) ...
//     one of several       Q(0) dO(0) V K   Q(1) dO(1)  ...
//
// K and V of a further tile come where those of the last one are until its last products, Q and dO
// of its first step before that.
#pragma once

#include "common/backward/mask.cuh"
#include "common/backward/query_rows.cuh"
#include "common/pipeline.cuh"
#include "ptx/cp_async_bulk.cuh"
#include "ptx/cp_async_bulk_linear.cuh"
#include "ptx/mbarrier.cuh"
#include "sm90/bwd/cluster_share.cuh"
#include "sm90/bwd/scheduler.cuh"
#include "sm90/bwd/shared_memory.cuh"

namespace fa_tune::sm90::backward {

template <Sm90BackwardConfig CFG, WorkloadTraits TRAITS>
struct Producer {
    using Layout = SharedMemory<CFG>;
    using Tile = WorkTile<TRAITS.packed>;
    static constexpr int kStatBytes = 4 * CFG.B_r;

    const BackwardParams& p;
    const ptx::TensorMap &q_map, &k_map, &v_map, &do_map;
    const SharedAddress<CFG> smem;
    RingPosition<CFG.q_stages> q_ring = {};
    RingPosition<Layout::kDoStages> do_ring = {};
    RingPosition<1> kv_ring = {};

    __device__ __forceinline__ void run(const Tile& first) {
        ProducerTiles<CFG.dynamic, TRAITS.packed> tiles{
            TileOrder<TRAITS.packed>::of_keys(p, CFG.B_c), smem.tiles(),
            reinterpret_cast<SchedulerCounters*>(p.counters)};
        for (Tile tile = first; tile.number >= 0; tile = tiles.next()) {
            const int key = tile.block * CFG.B_c;
            const Range blocks = queries_of_keys<TRAITS>(p, tile.sequence, {key, key + CFG.B_c})
                                     .template blocks<CFG.B_r>();
            bool first_step = true;
            if constexpr (CFG.cluster == 1) {
                int left = blocks.count() * p.heads_per_kv;  // steps
                if (left == 0) tiles.fetch_next();
                const int direction = step_direction(p);
#pragma unroll 1
                for (int block = starting_block(p, blocks); left > 0; block += direction) {
#pragma unroll 1
                    for (int of_group = 0; of_group < p.heads_per_kv; ++of_group) {
                        // As late as its number is there in time: with the longest tiles first a
                        // CTA that asked at the beginning of a long one would get another long one.
                        if (--left == 0) tiles.fetch_next();
                        load_step(tile, block, of_group, first_step);
                    }
                }
            } else {
                const StepShare share = share_of_cta<CFG.cluster>(blocks.count() * p.heads_per_kv);
                const int passed = share.first / p.heads_per_kv;
                int block = starting_block(p, blocks) + step_direction(p) * passed;
                int of_group = share.first - passed * p.heads_per_kv;
#pragma unroll 1
                for (int left = share.count; left > 0; --left) {
                    load_step(tile, block, of_group, first_step);
                    if (++of_group == p.heads_per_kv) {
                        of_group = 0;
                        block += step_direction(p);
                    }
                }
            }
        }
        tiles.release_counters();
    }

    // Q and dO of a block of queries of a head of the group, with the first also K and V.
    __device__ __forceinline__ void load_step(const Tile& tile, int block, int of_group,
                                              bool& first_step) {
        const int head = tile.head * p.heads_per_kv + of_group, row = block * CFG.B_r;
        const long long stats =
            QueryRows<TRAITS.packed>{p, tile.sequence, tile.batch, head}.padded(0);
        if (!CFG.dynamic && first_step) load_k(tile);
        load_q(row, head, tile, p.lse2 + stats + row);
        if (!CFG.dynamic && first_step) load_v(tile);
        load_do(row, head, tile, p.delta + stats + row);
        if (CFG.dynamic && first_step) {
            load_v(tile);
            load_k(tile);
        }
        if (first_step) kv_ring.advance();
        first_step = false;
    }

    __device__ __forceinline__ void load_q(int row, int head, const Tile& tile, const float* lse2) {
        const unsigned full = smem.q_full(q_ring.stage);
        ptx::mbarrier_wait(smem.q_empty(q_ring.stage), q_ring.parity ^ 1);
        ptx::mbarrier_arrive_expect_tx(full, Layout::QTile::kBytes + kStatBytes);
        load<typename Layout::QTile>(smem.q(q_ring.stage), q_map, full, ptx::kEvictLast, head,
                                     tile.sequence.template q_box<CFG.B_r>(row, tile.batch));
        ptx::cp_async_bulk_load(smem.lse2(q_ring.stage), lse2, kStatBytes, full);
        q_ring.advance();
    }

    __device__ __forceinline__ void load_do(int row, int head, const Tile& tile,
                                            const float* delta) {
        const unsigned full = smem.do_full(do_ring.stage);
        ptx::mbarrier_wait(smem.do_empty(do_ring.stage), do_ring.parity ^ 1);
        ptx::mbarrier_arrive_expect_tx(full, Layout::QTile::kBytes + kStatBytes);
        load<typename Layout::QTile>(smem.d_o(do_ring.stage), do_map, full, ptx::kEvictLast, head,
                                     tile.sequence.template q_box<CFG.B_r>(row, tile.batch));
        ptx::cp_async_bulk_load(smem.delta(do_ring.stage), delta, kStatBytes, full);
        do_ring.advance();
    }

    __device__ __forceinline__ void load_k(const Tile& tile) const {
        load_kv(k_map, smem.k(), smem.k_full(), smem.k_empty(), tile);
    }
    __device__ __forceinline__ void load_v(const Tile& tile) const {
        load_kv(v_map, smem.v(), smem.v_full(), smem.v_empty(), tile);
    }

    __device__ __forceinline__ void load_kv(const ptx::TensorMap& map, unsigned to, unsigned full,
                                            unsigned empty, const Tile& tile) const {
        ptx::mbarrier_wait(empty, kv_ring.parity ^ 1);
        ptx::mbarrier_arrive_expect_tx(full, Layout::KvTile::kBytes);
        using Block = typename Layout::KvTile;
#pragma unroll
        for (int panel = 0; panel < Block::kPanels; ++panel) {
#pragma unroll
            for (int down = 0; down < Block::kRows; down += 64) {
                load_box<TRAITS.packed>(
                    to + panel * Block::kPanelBytes + down * Block::kRowBytes, map, full,
                    ptx::kEvictFirst, 64 * panel, tile.head,
                    tile.sequence.template kv_box<64>(tile.block * CFG.B_c + down, tile.batch));
            }
        }
    }

    template <class Block>
    __device__ __forceinline__ static void load(unsigned to, const ptx::TensorMap& map,
                                                unsigned full, unsigned long long policy, int head,
                                                const BoxPlace& place) {
#pragma unroll
        for (int panel = 0; panel < Block::kPanels; ++panel) {
            load_box<TRAITS.packed>(to + panel * Block::kPanelBytes, map, full, policy, 64 * panel,
                                    head, place);
        }
    }
};

}  // namespace fa_tune::sm90::backward
