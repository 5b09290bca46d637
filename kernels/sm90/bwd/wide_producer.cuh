// The producer of the kernel for dK and dV of wide heads: one thread that loads, by bulk copies, K
// and V of each half of a tile and for every step Q with its LSE and dO with its D.
//
//     K  Q(0) V dO(0)  Q(1) dO(1)  Q(2) ...
//
// K and V of the second half come where dK and dV of the first one leave from.
#pragma once

#include "common/backward/mask.cuh"
#include "common/backward/query_rows.cuh"
#include "common/pipeline.cuh"
#include "ptx/cp_async_bulk.cuh"
#include "ptx/cp_async_bulk_linear.cuh"
#include "ptx/mbarrier.cuh"
#include "sm90/bwd/cluster_share.cuh"
#include "sm90/bwd/scheduler.cuh"
#include "sm90/bwd/wide_shared_memory.cuh"

namespace fa_tune::sm90::backward {

template <Sm90BackwardConfig CFG, WorkloadTraits TRAITS>
struct WideProducer {
    using Layout = WideSharedMemory<CFG>;
    using Tile = WorkTile<TRAITS.packed>;
    static constexpr int kRows = Layout::kRows;

    const BackwardParams& p;
    const ptx::TensorMap &q_map, &k_map, &v_map, &do_map;
    const WideSharedAddress<CFG> smem;
    RingPosition<Layout::kQSlots> q_ring = {};
    RingPosition<Layout::kDoSlots> do_ring = {};

    __device__ __forceinline__ void run(const Tile& tile) {
#pragma unroll 1
        for (int half = 0; half < CFG.B_c / kRows; ++half) {
            const int key = tile.block * CFG.B_c + half * kRows;
            if (key < tile.sequence.keys(p)) load_half(tile, key, half);
        }
    }

  private:
    __device__ __forceinline__ void load_half(const Tile& tile, int key, int half) {
        const Range blocks =
            queries_of_keys<TRAITS>(p, tile.sequence, {key, key + kRows}).template blocks<kRows>();
        bool first_step = true;
        if constexpr (CFG.cluster == 1) {
            int block = starting_block(p, blocks);
#pragma unroll 1
            for (int left = blocks.count(); left > 0; --left, block += step_direction(p)) {
#pragma unroll 1
                for (int of_group = 0; of_group < p.heads_per_kv; ++of_group) {
                    load_step(tile, key, half, block, of_group, first_step);
                }
            }
        } else {
            const StepShare share = share_of_cta<CFG.cluster>(blocks.count() * p.heads_per_kv);
            const int passed = share.first / p.heads_per_kv;
            int block = starting_block(p, blocks) + step_direction(p) * passed;
            int of_group = share.first - passed * p.heads_per_kv;
#pragma unroll 1
            for (int left = share.count; left > 0; --left) {
                load_step(tile, key, half, block, of_group, first_step);
                if (++of_group == p.heads_per_kv) {
                    of_group = 0;
                    block += step_direction(p);
                }
            }
        }
    }

    // Q and dO of a block of queries of a head of the group, with the first also K and V.
    __device__ __forceinline__ void load_step(const Tile& tile, int key, int half, int block,
                                              int of_group, bool& first_step) {
        const int head = tile.head * p.heads_per_kv + of_group;
        const int row = block * kRows;
        const long long stats =
            QueryRows<TRAITS.packed>{p, tile.sequence, tile.batch, head}.padded(row);
        const BoxPlace place = tile.sequence.template q_box<kRows>(row, tile.batch);
        const BoxPlace of_keys = tile.sequence.template kv_box<kRows>(key, tile.batch);
        if (first_step) {
            load_kv<typename Layout::KTile>(smem.k(), k_map, smem.k_full(), smem.k_empty(), half,
                                            tile.head, of_keys);
        }
        load_q(head, place, p.lse2 + stats);
        if (first_step) {
            load_kv<typename Layout::VTile>(smem.v(), v_map, smem.v_full(), smem.v_empty(), half,
                                            tile.head, of_keys);
        }
        load_do(head, place, p.delta + stats);
        first_step = false;
    }

    __device__ __forceinline__ void load_q(int head, const BoxPlace& place, const float* lse2) {
#pragma unroll
        for (int part = 0; part < Layout::kParts; ++part) {
            const int slot = q_ring.stage;
            ptx::mbarrier_wait(smem.q_empty(slot), q_ring.parity ^ 1);
            load_part<typename Layout::QPart>(smem.q(slot), q_map, smem.q_full(slot), part, head,
                                              place, lse2, smem.lse2(slot));
            q_ring.advance();
        }
    }

    __device__ __forceinline__ void load_do(int head, const BoxPlace& place, const float* delta) {
#pragma unroll
        for (int part = 0; part < Layout::kParts; ++part) {
            const int slot = do_ring.stage;
            ptx::mbarrier_wait(smem.do_empty(slot), do_ring.parity ^ 1);
            load_part<typename Layout::DoPart>(smem.d_o(slot), do_map, smem.do_full(slot), part,
                                               head, place, delta, smem.delta(slot));
            do_ring.advance();
        }
    }

    // With the first part its step's statistics.
    template <class Part>
    __device__ __forceinline__ void load_part(unsigned to, const ptx::TensorMap& map, unsigned full,
                                              int part, int head, const BoxPlace& place,
                                              const float* statistics,
                                              unsigned to_statistics) const {
        constexpr int kStatBytes = 4 * kRows;
        ptx::mbarrier_arrive_expect_tx(full, Part::kBytes + (part == 0 ? kStatBytes : 0));
        load<Part>(to, map, full, ptx::kEvictLast, part * Part::kColumns, head, place);
        if (part == 0) ptx::cp_async_bulk_load(to_statistics, statistics, kStatBytes, full);
    }

    template <class Block>
    __device__ __forceinline__ void load_kv(unsigned to, const ptx::TensorMap& map, unsigned full,
                                            unsigned empty, int half, int head,
                                            const BoxPlace& place) const {
        ptx::mbarrier_wait(empty, half & 1 ^ 1);
        ptx::mbarrier_arrive_expect_tx(full, Block::kBytes);
        load<Block>(to, map, full, ptx::kEvictFirst, 0, head, place);
    }

    template <class Block>
    __device__ __forceinline__ static void load(unsigned to, const ptx::TensorMap& map,
                                                unsigned full, unsigned long long policy,
                                                int first_column, int head, const BoxPlace& place) {
#pragma unroll
        for (int panel = 0; panel < Block::kPanels; ++panel) {
            load_box<TRAITS.packed>(to + panel * Block::kPanelBytes, map, full, policy,
                                    first_column + 64 * panel, head, place);
        }
    }
};

}  // namespace fa_tune::sm90::backward
