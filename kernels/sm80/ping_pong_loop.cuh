// The walk over the blocks of K and V when bulk tensor copies bring them and the warps of a
// scheduler take turns at the tensor cores.  Needs compute capability 9.0.
//
//     shared memory   | Q | K ring: kv_stages blocks | V ring | O | tags of blocks | Barriers |
//
// Warps w, w + 4, ... run on the same of the four schedulers.  Left alone, they meet in the
// same phase as often as not: both want the tensor cores, then both leave them idle.  So each
// multiplies only in its turn, and does its softmax in the others':
//
//     warp w       | O += P V(j+1), S = Q K(j)^T |        softmax        | O += P V(j), S = ...
//     warp w + 4   |          softmax            | O += P V, S = Q K^T   |   softmax
//
// P V of one block and Q K^T of the next make up one turn.  A turn is passed on by a named
// barrier of the two warps concerned.  The blocks of all tiles of a CTA are one stream, see
// block_stream.cuh: a tile's last P V and the next one's first Q K^T are a turn like any other,
// and O is written in the other warps' turns.
//
// A block's place in a ring is full when its bytes have arrived at its mbarrier, and empty when
// every warp has arrived at another.  No thread waits for a place to become empty for long: it
// is refilled one block after the refilling warp itself was done with it.
#pragma once

#include "ptx/elect.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/tma.cuh"
#include "sm80/block_stream.cuh"
#include "sm80/warp_tile.cuh"
#include "tile/panels.cuh"

// Shared addresses of the mbarriers: full and empty of every stage of K and of V, then Q full of
// every warp.
template <int kStages>
struct PingPongBarriers {
    unsigned base;

    __device__ __forceinline__ unsigned q_full(int warp) const { return at(4, warp); }
    __device__ __forceinline__ unsigned k_full(int stage) const { return at(0, stage); }
    __device__ __forceinline__ unsigned k_empty(int stage) const { return at(1, stage); }
    __device__ __forceinline__ unsigned v_full(int stage) const { return at(2, stage); }
    __device__ __forceinline__ unsigned v_empty(int stage) const { return at(3, stage); }

    __device__ __forceinline__ void init(int n_warps) const {
        for (int i = 0; i < n_warps; ++i) ptx::mbarrier_init(q_full(i), 1);
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
        return base + 8 * (kind * kStages + stage);
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
    using QTile = tile::PanelTile<CFG.B_r, CFG.d_head>;
    using KVTile = tile::PanelTile<CFG.B_c, CFG.d_head>;
    using Tile = WarpTile<CFG, TRAITS, QTile, KVTile>;
    using Position = RingPosition<kStages>;
    static constexpr bool kMasked = Tile::kMasked;
    static constexpr int kWarpBytes = Tile::kRowsPerWarp * QTile::kRowBytes;  // of a panel of Q

    const ForwardParams& params;
    const ptx::TensorMap &q_map, &k_map, &v_map, &o_map;
    const unsigned q_smem, k_smem, v_smem, o_smem;
    const unsigned tags;  // of blocks, twice as many as stages, and the stream's own
    const PingPongBarriers<kStages> barriers;
    Tile warp_tile;

    __device__ __forceinline__ PingPongLoop(const ForwardParams& p, const ptx::TensorMap& q_map,
                                            const ptx::TensorMap& k_map,
                                            const ptx::TensorMap& v_map,
                                            const ptx::TensorMap& o_map, unsigned smem)
        : params(p),
          q_map(q_map),
          k_map(k_map),
          v_map(v_map),
          o_map(o_map),
          q_smem(smem),
          k_smem(smem + QTile::kBytes),
          v_smem(k_smem + kStages * KVTile::kBytes),
          o_smem(v_smem + kStages * KVTile::kBytes),
          tags(o_smem + QTile::kBytes),
          barriers{tags + 32 * kStages + BlockStream<CFG, TRAITS>::kBytes},
          warp_tile(p.softmax_scale, q_smem, k_smem, v_smem) {}

    __device__ __forceinline__ BlockStream<CFG, TRAITS> stream() const {
        return {params, tags + 32 * kStages};
    }

    // Where the tag of the block in a place lies.  A tag outlives its block by a round.
    __device__ __forceinline__ unsigned tag_at(Position place) const {
        return tags + 16 * (place.stage + kStages * place.parity);
    }

    // By one thread: ask for a block of K or V.
    __device__ __forceinline__ void load(const ptx::TensorMap& map, unsigned target, unsigned full,
                                         const BlockTag& tag) const {
        ptx::mbarrier_arrive_expect_tx(full, KVTile::kBytes);
#pragma unroll
        for (int panel = 0; panel < KVTile::kPanels; ++panel) {
            ptx::tma_load_4d(target + panel * KVTile::kPanelBytes, map, full, ptx::kEvictLast,
                             KVTile::kPanelColumns * panel, tag.block * CFG.B_c, tag.kv_head(),
                             tag.batch);
        }
    }

    // By one thread: publish a block's tag and ask for its K.
    __device__ __forceinline__ void load_k(Position place, const BlockTag& tag) const {
        tag.store(tag_at(place));
        const unsigned full = barriers.k_full(place.stage);
        if (tag.block >= 0) {
            load(k_map, k_smem + place.stage * KVTile::kBytes, full, tag);
        } else {
            ptx::mbarrier_arrive(full);
        }
    }

    __device__ __forceinline__ void load_v(int stage, const BlockTag& tag) const {
        load(v_map, v_smem + stage * KVTile::kBytes, barriers.v_full(stage), tag);
    }

    // Ask for this warp's rows of Q.
    __device__ __forceinline__ void load_q(const BlockTag& tag) const {
        __syncwarp();
        if (!ptx::elect_one()) return;
        const unsigned full = barriers.q_full(warp_tile.warp);
        ptx::mbarrier_arrive_expect_tx(full, QTile::kPanels * kWarpBytes);
#pragma unroll
        for (int panel = 0; panel < QTile::kPanels; ++panel) {
            ptx::tma_load_4d(q_smem + panel * QTile::kPanelBytes + warp_tile.warp * kWarpBytes,
                             q_map, full, ptx::kEvictFirst, QTile::kPanelColumns * panel,
                             tag.first_query + warp_tile.warp * Tile::kRowsPerWarp, tag.head(),
                             tag.batch);
        }
    }

    // The same of the tile whose first block is in place `next`.
    __device__ __forceinline__ void load_next_q(Position next) const {
        ptx::mbarrier_wait(barriers.k_full(next.stage), next.parity);
        const BlockTag tag = BlockTag::load(tag_at(next));
        if (tag.block >= 0) load_q(tag);
    }

    __device__ __forceinline__ void wait_q(unsigned parity) {
        ptx::mbarrier_wait(barriers.q_full(warp_tile.warp), parity);
        if constexpr (Tile::kQStaysInRegisters) warp_tile.load_q_registers();
    }

    // The barrier through which a warp of `turn` gets its turn from the one before it.
    __device__ __forceinline__ int turn_barrier(int turn) const {
        return 1 + warp_tile.warp % kSchedulers * kTurns + turn;
    }

    __device__ __forceinline__ bool has_last_turn() const {
        return warp_tile.warp / kSchedulers == kTurns - 1;
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

    // Whether some of the tile's rows do not see all of the block.
    __device__ __forceinline__ bool masked(const BlockTag& tag) const {
        if constexpr (!kMasked) return false;
        return tag.block >=
               BlockRange::of<CFG.B_r, CFG.B_c, TRAITS.causal>(params, tag.first_query).unmasked;
    }

    // Whether no row of this warp sees anything of a block, which is not the tile's last.
    __device__ __forceinline__ bool unseen(const BlockTag& tag) const {
        const int last_row = tag.first_query + (warp_tile.warp + 1) * Tile::kRowsPerWarp - 1;
        return tag.block > 0 && tag.block * CFG.B_c > last_row + params.diagonal;
    }

    // Where the maxima of a tile's first and last block are taken: in the code of the usual block,
    // by a branch around them, or in that of the rare one.  Which is faster depends on what the
    // assembler makes of it (H200).
    static constexpr bool kMaximaInPlace = !TRAITS.causal && !Tile::kMoreScores;

    // P from S of the block in place `now`, the `first` of its tile or not.  With `missing` S is
    // yet to be multiplied, out of turn.
    __device__ __forceinline__ void exponentiate(const BlockTag& tag, Position now, bool first,
                                                 bool missing) {
        const unsigned k_offset = now.stage * KVTile::kBytes;
        const bool partly = masked(tag), last = tag.block == 0;
        if constexpr (Tile::kLazy) {
            const bool fresh = first || last || partly;
            auto softmax = [&](bool with_maxima) {
                if (last) load_next_q(now.next());
                if (partly) warp_tile.mask(params, tag.first_query, tag.block * CFG.B_c);
                return warp_tile.lazy_softmax(with_maxima);
            };
            if constexpr (kMaximaInPlace) {
                if (missing || !softmax(fresh)) {
                    warp_tile.multiply_qk_in_turn(k_offset);
                    softmax(true);
                }
            } else {
                if (missing || !fresh) {
                    if (!missing && warp_tile.lazy_softmax(false)) return;
                    warp_tile.multiply_qk_in_turn(k_offset);
                }
                softmax(true);
            }
        } else {
            if (missing) warp_tile.multiply_qk_in_turn(k_offset);
            if (last) load_next_q(now.next());
            if (partly) warp_tile.mask(params, tag.first_query, tag.block * CFG.B_c);
            warp_tile.softmax.advance(warp_tile.s, warp_tile.o, first);
            warp_tile.exponentiate();
        }
    }

    // O of the tile, by way of this warp's own rows of its buffer.
    __device__ __forceinline__ void write_output(const BlockTag& tag) {
        if (ptx::elect_one()) ptx::bulk_wait_group_read();
        __syncwarp();
        warp_tile.stage_output(params, o_smem, tag.batch, tag.head(), tag.first_query);
        ptx::fence_proxy_async_shared();
        __syncwarp();
        if (ptx::elect_one()) {
#pragma unroll
            for (int panel = 0; panel < QTile::kPanels; ++panel) {
                ptx::tma_store_4d(
                    o_map, o_smem + panel * QTile::kPanelBytes + warp_tile.warp * kWarpBytes,
                    QTile::kPanelColumns * panel,
                    tag.first_query + warp_tile.warp * Tile::kRowsPerWarp, tag.head(), tag.batch);
            }
            ptx::bulk_commit_group();
        }
        __syncwarp();
    }

    __device__ __forceinline__ void walk() {
        Position now;
        unsigned q_parity = 0;
        typename Tile::VRuns v_stream;
        load_q(stream().first_of(blockIdx.x));
        ptx::mbarrier_wait(barriers.k_full(0), 0);
        wait_q(0);
        if (has_last_turn()) pass_turn();  // the first turn is turn 0's
        bool missing = true;               // the scores of the block in place `now`
        bool first = true;                 // it is the first of its tile
#pragma unroll 1
        while (true) {
            const Position next = now.next();
            const unsigned v_offset = now.stage * KVTile::kBytes;
            const BlockTag tag = BlockTag::load(tag_at(now));
            if (TRAITS.causal && unseen(tag)) {
                // Nothing to multiply: others may have the turn.
                release(barriers.k_empty(now.stage));
                take_turn();
                pass_turn();
                // That this V is here says that all are done with the one before it.  Without
                // that a warp could arrive for two rounds while another still reads the first.
                ptx::mbarrier_wait(barriers.v_full(now.stage), now.parity);
                release(barriers.v_empty(now.stage));
                if (warp_tile.warp == 0) refill(now);
                ptx::mbarrier_wait(barriers.k_full(next.stage), next.parity);
                missing = true;
                now = next;
                continue;
            }
            exponentiate(tag, now, first, missing);
            warp_tile.pin_softmax();
            missing = false;
            release(barriers.k_empty(now.stage));
            ptx::mbarrier_wait(barriers.v_full(now.stage), now.parity);
            warp_tile.start_pv(v_stream, v_offset);
            ptx::mbarrier_wait(barriers.k_full(next.stage), next.parity);
            const bool more = BlockTag::load_block(tag_at(next)) >= 0;
            const bool last = BlockTag::load_block(tag_at(now)) == 0;
            if (last && more) {
                q_parity ^= 1;
                wait_q(q_parity);
            }
            take_turn();
            warp_tile.multiply_pv(v_stream, v_offset);
            // Behind the last block, of whatever is in shared memory: a branch would part the two
            // products.
            warp_tile.multiply_qk_in_turn(next.stage * KVTile::kBytes);
            if (more || !has_last_turn()) pass_turn();  // nobody waits for the turn after the last
            release(barriers.v_empty(now.stage));
            if (warp_tile.warp == 0) refill(now);
            if (last) {
                write_output(BlockTag::load(tag_at(now)));
                warp_tile.restart();
            }
            if (!more) break;
            first = last;
            now = next;
        }
        // Shared memory must outlast the store that reads it.
        if (ptx::elect_one()) ptx::bulk_wait_group_read();
    }

    // By one warp, after its turn with V of the block in place `now`: refill the places it was
    // done with a block ago, of K of the same block and of V of the block before.
    __device__ __forceinline__ void refill(Position now) const {
        if (!ptx::elect_one()) return;
        const BlockTag tag = stream().last_published();
        if (tag.block < 0) return;
        ptx::mbarrier_wait(barriers.k_empty(now.stage), now.parity);
        load_k(Position{now.stage, now.parity ^ 1}, stream().next(tag));
        const Position before = now.stage == 0 ? Position{kStages - 1, now.parity ^ 1}
                                               : Position{now.stage - 1, now.parity};
        ptx::mbarrier_wait(barriers.v_empty(before.stage), before.parity);
        load_v(before.stage, tag);
    }

    // By one thread: ask for the first blocks, all of K and all but one of V.
    __device__ __forceinline__ void fill() const {
        BlockTag tag = stream().begin();
        for (int i = 0; i < kStages && tag.block >= 0; ++i) {
            if (i > 0) tag = stream().next(tag);
            load_k(Position{i, 0}, tag);
            if (i + 1 < kStages && tag.block >= 0) load_v(i, tag);
        }
    }

    __device__ __forceinline__ void run() {
        if (threadIdx.x == 0) barriers.init(CFG.n_warps);
        __syncthreads();
        if (warp_tile.warp == 0 && ptx::elect_one()) fill();
        walk();
    }
};
