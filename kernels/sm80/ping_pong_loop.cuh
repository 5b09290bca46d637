// The walk over the blocks of K and V when bulk tensor copies bring them and the warps of a
// scheduler take turns at the tensor cores.  Needs compute capability 9.0.
//
//     shared memory   | Q (later O) | K ring: kv_stages blocks | V ring | Barriers |
//
// Warps w, w + 4, ... run on the same of the four schedulers.  Left alone, they meet in the
// same phase as often as not: both want the tensor cores, then both leave them idle.  So each
// multiplies only in its turn, and does its softmax in the others':
//
//     warp w       | O += P V(j+1), S = Q K(j)^T |        softmax        | O += P V(j), S = ...
//     warp w + 4   |          softmax            | O += P V, S = Q K^T   |   softmax
//
// P V of one block and Q K^T of the next make up one turn.  A turn is passed on by a named
// barrier of the two warps concerned.
//
// A block's place in a ring is full when its bytes have arrived at its mbarrier, and empty when
// every warp has arrived at another.  No thread waits for a place to become empty for long: it
// is refilled one block after the refilling warp itself was done with it.
#pragma once

#include "ptx/elect.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/tma.cuh"
#include "sm80/block_range.cuh"
#include "sm80/warp_tile.cuh"
#include "tile/panels.cuh"

// Shared addresses of the mbarriers: Q full, then full and empty of every stage of K and of V.
template <int kStages>
struct PingPongBarriers {
    unsigned base;

    __device__ __forceinline__ unsigned q_full() const { return base; }
    __device__ __forceinline__ unsigned k_full(int stage) const { return at(0, stage); }
    __device__ __forceinline__ unsigned k_empty(int stage) const { return at(1, stage); }
    __device__ __forceinline__ unsigned v_full(int stage) const { return at(2, stage); }
    __device__ __forceinline__ unsigned v_empty(int stage) const { return at(3, stage); }

    __device__ __forceinline__ void init(int n_warps) const {
        ptx::mbarrier_init(q_full(), 1);
#pragma unroll
        for (int i = 0; i < kStages; ++i) {
            ptx::mbarrier_init(k_full(i), 1);
            ptx::mbarrier_init(v_full(i), 1);
            ptx::mbarrier_init(k_empty(i), n_warps);
            ptx::mbarrier_init(v_empty(i), n_warps);
        }
        ptx::fence_mbarrier_init();
    }

  private:
    __device__ __forceinline__ unsigned at(int kind, int stage) const {
        return base + 8 * (1 + kind * kStages + stage);
    }
};

// A place in a ring and the parity of the round it is in.
template <int kStages>
struct RingPosition {
    int stage = 0;
    unsigned parity = 0;

    __device__ __forceinline__ RingPosition next() const {
        return stage + 1 == kStages ? RingPosition{0, parity ^ 1} : RingPosition{stage + 1, parity};
    }
};

template <FlashForwardKernelConfig CFG, WorkloadTraits TRAITS>
struct PingPongLoop {
    static constexpr int kStages = CFG.kv_stages;
    static constexpr int kSchedulers = 4;
    static constexpr int kTurns = CFG.n_warps / kSchedulers;  // warps of one scheduler
    static constexpr int kGroupRows = CFG.B_r / kTurns;       // rows of one box of Q
    using QTile = tile::PanelTile<CFG.B_r, CFG.d_head>;
    using KVTile = tile::PanelTile<CFG.B_c, CFG.d_head>;
    using Tile = WarpTile<CFG, TRAITS, QTile, KVTile>;
    using Position = RingPosition<kStages>;
    static constexpr bool kMasked = Tile::kMasked;

    const ForwardParams& params;
    const ptx::TensorMap &k_map, &v_map;
    const int first_query;  // of this CTA
    const unsigned q_smem, k_smem, v_smem;
    const PingPongBarriers<kStages> barriers;
    Tile warp_tile;

    __device__ __forceinline__ PingPongLoop(const ForwardParams& p, const ptx::TensorMap& k_map,
                                            const ptx::TensorMap& v_map, unsigned smem)
        : params(p),
          k_map(k_map),
          v_map(v_map),
          first_query(blockIdx.x * CFG.B_r),
          q_smem(smem),
          k_smem(smem + QTile::kBytes),
          v_smem(k_smem + kStages * KVTile::kBytes),
          barriers{v_smem + kStages * KVTile::kBytes},
          warp_tile(p.softmax_scale, q_smem, k_smem, v_smem) {}

    // By one thread: ask for a block of K or V.
    __device__ __forceinline__ void load(const ptx::TensorMap& map, unsigned target, unsigned full,
                                         int block) const {
        ptx::mbarrier_arrive_expect_tx(full, KVTile::kBytes);
#pragma unroll
        for (int panel = 0; panel < KVTile::kPanels; ++panel) {
            ptx::tma_load_4d(target + panel * KVTile::kPanelBytes, map, full, ptx::kEvictLast,
                             KVTile::kPanelColumns * panel, block * CFG.B_c,
                             blockIdx.y / params.heads_per_kv, blockIdx.z);
        }
    }

    __device__ __forceinline__ void load_k(int stage, int block) const {
        load(k_map, k_smem + stage * KVTile::kBytes, barriers.k_full(stage), block);
    }

    __device__ __forceinline__ void load_v(int stage, int block) const {
        load(v_map, v_smem + stage * KVTile::kBytes, barriers.v_full(stage), block);
    }

    __device__ __forceinline__ void load_q(const ptx::TensorMap& q_map) const {
        ptx::mbarrier_arrive_expect_tx(barriers.q_full(), QTile::kBytes);
#pragma unroll
        for (int panel = 0; panel < QTile::kPanels; ++panel) {
#pragma unroll
            for (int row = 0; row < CFG.B_r; row += kGroupRows) {
                ptx::tma_load_4d(q_smem + panel * QTile::kPanelBytes + row * QTile::kRowBytes,
                                 q_map, barriers.q_full(), ptx::kEvictFirst,
                                 QTile::kPanelColumns * panel, first_query + row, blockIdx.y,
                                 blockIdx.z);
            }
        }
    }

    // The barrier through which a warp of `turn` gets its turn from the one before it.
    __device__ __forceinline__ int turn_barrier(int turn) const {
        return 1 + warp_tile.warp % kSchedulers * kTurns + turn;
    }

    __device__ __forceinline__ void take_turn() const {
        ptx::named_barrier_sync(turn_barrier(warp_tile.warp / kSchedulers), 64);
    }

    __device__ __forceinline__ void pass_turn() const {
        ptx::named_barrier_arrive(turn_barrier((warp_tile.warp / kSchedulers + 1) % kTurns), 64);
    }

    // This warp has read all it wants of a ring's place.
    __device__ __forceinline__ void release(unsigned empty) const {
        __syncwarp();
        if (warp_tile.lane == 0) ptx::mbarrier_arrive(empty);
    }

    __device__ __forceinline__ void mask(const BlockRange& range, int block) {
        if (kMasked && block >= range.unmasked) {
            warp_tile.mask(params, first_query, block * CFG.B_c);
        }
    }

    __device__ __forceinline__ void softmax(bool first) {
        warp_tile.softmax.advance(warp_tile.s, warp_tile.o, first);
        warp_tile.exponentiate();
        warp_tile.pin_softmax();
    }

    __device__ __forceinline__ void walk(const BlockRange& range) {
        const bool refills = warp_tile.warp == 0;
        const bool last_turn = warp_tile.warp / kSchedulers == kTurns - 1;
        if constexpr (Tile::kQStaysInRegisters) warp_tile.load_q_registers();
        int block = range.end - 1;
        Position now;
        typename Tile::VRolling v_stream;
        if (last_turn) pass_turn();  // the first turn is turn 0's
        ptx::mbarrier_wait(barriers.k_full(0), 0);
        take_turn();
        warp_tile.multiply_qk_rolling(0);
        pass_turn();
        release(barriers.k_empty(0));
        mask(range, block);
        bool first = true;
#pragma unroll 1
        for (; block > 0; --block) {
            softmax(first);
            first = false;
            const Position next = now.next();
            const unsigned v_offset = now.stage * KVTile::kBytes;
            ptx::mbarrier_wait(barriers.v_full(now.stage), now.parity);
            warp_tile.start_pv(v_stream, v_offset);
            ptx::mbarrier_wait(barriers.k_full(next.stage), next.parity);
            take_turn();
            warp_tile.multiply_pv(v_stream, v_offset);
            warp_tile.multiply_qk_rolling(next.stage * KVTile::kBytes);
            pass_turn();
            release(barriers.v_empty(now.stage));
            release(barriers.k_empty(next.stage));
            if (refills) refill(block, range.end - 1, now);
            now = next;
            mask(range, block - 1);
        }
        softmax(first);
        ptx::mbarrier_wait(barriers.v_full(now.stage), now.parity);
        warp_tile.start_pv(v_stream, now.stage * KVTile::kBytes);
        take_turn();
        warp_tile.multiply_pv(v_stream, now.stage * KVTile::kBytes);
        if (!last_turn) pass_turn();  // nobody waits for the turn after the last
    }

    // By one warp, after its turn with V of `block`, which is in place `now`: refill the places
    // it was done with a block ago, of K of the same block and of V of the block before.
    __device__ __forceinline__ void refill(int block, int last_block, Position now) const {
        if (!ptx::elect_one()) return;
        if (block >= kStages) {
            ptx::mbarrier_wait(barriers.k_empty(now.stage), now.parity);
            load_k(now.stage, block - kStages);
        }
        const int next_v = block + 1 - kStages;
        if (block < last_block && next_v >= 0) {
            const Position before = now.stage == 0 ? Position{kStages - 1, now.parity ^ 1}
                                                   : Position{now.stage - 1, now.parity};
            ptx::mbarrier_wait(barriers.v_empty(before.stage), before.parity);
            load_v(before.stage, next_v);
        }
    }

    __device__ __forceinline__ void run(const ptx::TensorMap& q_map) {
        const BlockRange range =
            BlockRange::of<CFG.B_r, CFG.B_c, TRAITS.causal>(params, first_query);
        if (threadIdx.x == 0) barriers.init(CFG.n_warps);
        __syncthreads();
        if (warp_tile.warp == 0 && ptx::elect_one()) {
            load_q(q_map);
            for (int i = 0; i < kStages && i < range.end; ++i) {
                load_k(i, range.end - 1 - i);
                load_v(i, range.end - 1 - i);
            }
        }
        ptx::mbarrier_wait(barriers.q_full(), 0);
        if (range.end > 0) walk(range);
        warp_tile.write_output(params, blockIdx.z, blockIdx.y, first_query);
    }
};
