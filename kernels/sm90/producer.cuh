// The producer: one thread that keeps the rings of K and V and the Q buffers filled by TMA.
//
//     per tile of n key blocks:   K(n-1)  Q  K(n-2) V(n-1)  K(n-3) V(n-2)  ...  K(0) V(1)  V(0)
//
// K runs one block ahead of V, as the consumers do.  It goes on to the next tile as soon as
// there is room.
#pragma once

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
    RingPosition<CFG.stages> k_ring, v_ring;

    __device__ __forceinline__ void run() {
        ProducerTiles<CFG, TRAITS> tiles{{p}, smem};
        for (Tile tile = tiles.first(); tiles.valid(tile); tile = tiles.next(tile)) {
            tiles.ask();
            const int batch = tile.head / p.heads;
            const int head = tile.head - batch * p.heads;
            const int kv_head = head / p.heads_per_kv;
            int block = key_blocks<CFG, TRAITS>(p, tile) - 1;
            load_k(block, kv_head, batch);
            load_q(tile.row_block, head, batch);
#pragma unroll 1
            for (; block > 0; --block) {
                load_k(block - 1, kv_head, batch);
                load_v(block, kv_head, batch);
            }
            load_v(0, kv_head, batch);
        }
        tiles.finish();
    }

    __device__ __forceinline__ void load_q(int row_block, int head, int batch) {
#pragma unroll
        for (int w = 0; w < CFG.consumers; ++w) {
            const int slot = q_ring.stage * CFG.consumers + w;
            const unsigned full = smem + Shared::kQFull + 8 * slot;
            ptx::mbarrier_wait(smem + Shared::kQEmpty + 8 * slot, q_ring.parity ^ 1);
            ptx::mbarrier_arrive_expect_tx(full, Shared::kQBytes);
#pragma unroll
            for (int panel = 0; panel < Shared::kPanels; ++panel) {
                ptx::tma_load_4d(
                    smem + Shared::kQ + slot * Shared::kQBytes + panel * Shared::kQPanelBytes,
                    q_map, full, ptx::kEvictFirst, 64 * panel, row_block * CFG.B_r + 64 * w, head,
                    batch);
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

    __device__ __forceinline__ void load_kv(const ptx::TensorMap& map, int tiles, int full_barriers,
                                            int empty_barriers, RingPosition<CFG.stages>& ring,
                                            int block, int kv_head, int batch) {
        const unsigned full = smem + full_barriers + 8 * ring.stage;
        ptx::mbarrier_wait(smem + empty_barriers + 8 * ring.stage, ring.parity ^ 1);
        ptx::mbarrier_arrive_expect_tx(full, Shared::kKVBytes);
#pragma unroll
        for (int panel = 0; panel < Shared::kPanels; ++panel) {
            ptx::tma_load_4d(
                smem + tiles + ring.stage * Shared::kKVBytes + panel * Shared::kKVPanelBytes, map,
                full, ptx::kEvictLast, 64 * panel, block * CFG.B_c, kv_head, batch);
        }
        ring.advance();
    }
};
