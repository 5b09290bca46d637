// The producer: one thread that keeps the rings of K and V and the Q buffers filled by TMA.
//
//     per tile of n key blocks:   K(n-1)  Q  K(n-2) V(n-1)  K(n-3) V(n-2)  ...  K(0) V(1)  V(0)
//
// K runs one block ahead of V, as the consumers do.  It goes on to the next tile as soon as
// there is room.  In a cluster each producer loads its share of a block's rows for all CTAs, when
// all have room:
//
//     block in every CTA:   | rows loaded by rank 0 | rows loaded by rank 1 |
#pragma once

#include "ptx/cluster.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"
#include "sm90/ring.cuh"
#include "sm90/scheduler.cuh"
#include "sm90/shared_memory.cuh"

template <Sm90Config CFG, WorkloadTraits TRAITS>
struct Producer {
    using Shared = SharedMemory<CFG>;

    const ForwardParams& p;
    const ptx::TensorMap &q_map, &k_map, &v_map;
    const unsigned smem;
    RingPosition<CFG.q_stages> q_ring;
    RingPosition<CFG.stages> k_ring;
    RingPosition<Shared::kVStages> v_ring;

    __device__ __forceinline__ void run(const Tile& first) {
        ProducerTiles<CFG, TRAITS> tiles{{p}, {smem}};
        for (Tile tile = first; tile.number >= 0; tile = tiles.next(tile)) {
            tiles.ask();
            const int kv_head = tile.head / p.heads_per_kv;
            int block = key_blocks<CFG, TRAITS>(p, tile) - 1;
            load_k(block, kv_head, tile.batch);
            load_q(tile);
#pragma unroll 1
            for (; block > 0; --block) {
                load_k(block - 1, kv_head, tile.batch);
                load_v(block, kv_head, tile.batch);
            }
            load_v(0, kv_head, tile.batch);
        }
        tiles.finish();
    }

    __device__ __forceinline__ void load_q(const Tile& tile) {
#pragma unroll
        for (int w = 0; w < CFG.consumers; ++w) {
            const int slot = q_ring.stage * CFG.consumers + w;
            const unsigned full = smem + Shared::kQFull + 8 * slot;
            ptx::mbarrier_wait(smem + Shared::kQEmpty + 8 * slot, q_ring.parity ^ 1);
            ptx::mbarrier_arrive_expect_tx(full, Shared::kQBytes);
#pragma unroll
            for (int m = 0; m < CFG.m_tiles; ++m) {
                const int row = tile.row_block * CFG.B_r + 64 * (w * CFG.m_tiles + m);
                const unsigned destination =
                    smem + Shared::kQ + slot * Shared::kQBytes + m * Shared::kQTileBytes;
#pragma unroll
                for (int panel = 0; panel < Shared::kPanels; ++panel) {
                    ptx::tma_load_4d(destination + panel * Shared::kQPanelBytes, q_map, full,
                                     ptx::kEvictFirst, 64 * panel, row, tile.head, tile.batch);
                }
            }
        }
        q_ring.advance();
    }

    __device__ __forceinline__ void load_k(int block, int kv_head, int batch) {
        load_kv(k_map, Shared::kK, Shared::kKFull, Shared::kKEmpty, k_ring, block, kv_head, batch);
    }

    __device__ __forceinline__ void load_v(int block, int kv_head, int batch) {
        load_kv(v_map, Shared::kV, Shared::kVFull, Shared::kVEmpty, v_ring, block, kv_head, batch);
    }

    template <int kStages>
    __device__ __forceinline__ void load_kv(const ptx::TensorMap& map, int tiles, int full_barriers,
                                            int empty_barriers, RingPosition<kStages>& ring,
                                            int block, int kv_head, int batch) {
        constexpr int kShareRows = CFG.B_c / CFG.cluster;
        const int share = rank_in_cluster<CFG>() * kShareRows;
        const unsigned full = smem + full_barriers + 8 * ring.stage;
        const unsigned destination =
            smem + tiles + ring.stage * Shared::kKVBytes + share * ptx::kSwizzleBytes;
        ptx::mbarrier_wait(smem + empty_barriers + 8 * ring.stage, ring.parity ^ 1);
        ptx::mbarrier_arrive_expect_tx(full, Shared::kKVBytes);
#pragma unroll
        for (int panel = 0; panel < Shared::kPanels; ++panel) {
            const unsigned of_panel = destination + panel * Shared::kKVPanelBytes;
            if constexpr (CFG.cluster == 1) {
                ptx::tma_load_4d(of_panel, map, full, ptx::kEvictLast, 64 * panel, block * CFG.B_c,
                                 kv_head, batch);
            } else {
                ptx::tma_load_4d_multicast(of_panel, map, full, (1 << CFG.cluster) - 1,
                                           ptx::kEvictLast, 64 * panel, block * CFG.B_c + share,
                                           kv_head, batch);
            }
        }
        ring.advance();
    }
};
