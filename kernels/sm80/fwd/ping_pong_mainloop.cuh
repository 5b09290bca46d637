// The walk over the blocks of K and V when bulk tensor copies bring them and the warps of a
// scheduler take turns at the tensor cores.  Needs compute capability 9.0.
//
//     shared memory   | Q | K ring: kv_stages blocks | V ring | O | work items | Barriers |
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
// work_stream.cuh: a tile's last P V and the next one's first Q K^T are a turn like any other,
// and O is written in the other warps' turns.
//
// A block's place in a ring is full when its bytes have arrived at its mbarrier, and empty when
// every warp has arrived at another.  No thread waits for a place to become empty for long: it
// is refilled one block after the refilling warp itself was done with it.
#pragma once

#include "common/pipeline.cuh"
#include "common/swizzle.cuh"
#include "ptx/bar.cuh"
#include "ptx/cp_async_bulk.cuh"
#include "ptx/elect.cuh"
#include "ptx/mbarrier.cuh"
#include "sm80/fwd/epilogue.cuh"
#include "sm80/fwd/named_barriers.cuh"
#include "sm80/fwd/turn_products.cuh"
#include "sm80/fwd/warp_tile.cuh"
#include "sm80/fwd/work_stream.cuh"

namespace fa_tune::sm80 {

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

template <FlashForwardKernelConfig CFG, WorkloadTraits TRAITS>
struct PingPongMainloop {
    static constexpr int kStages = CFG.kv_stages;
    static constexpr int kSchedulers = 4;
    static constexpr int kTurns = CFG.n_warps / kSchedulers;  // warps of one scheduler
    using QTile = PanelTile<CFG.B_r, CFG.d_head>;
    using OTile = PanelTile<CFG.B_r, CFG.d_v()>;
    using KTile = PanelTile<CFG.B_c, CFG.d_head>;
    using VTile = PanelTile<CFG.B_c, CFG.d_v()>;
    using Tile = WarpTile<CFG, TRAITS, Tiles<QTile, OTile, KTile, VTile>>;
    using Products = TurnProducts<CFG, TRAITS, Tile>;
    using Position = RingPosition<kStages>;
    static constexpr bool kMasked = Tile::kMasked;
    static constexpr int kWarpBytes = Tile::kRowsPerWarp * QTile::kRowBytes;  // of a panel of Q, O

    const ForwardParams& params;
    const ptx::TensorMap &q_map, &k_map, &v_map, &o_map;
    const unsigned q_smem, k_smem, v_smem, o_smem;
    const unsigned items;  // of blocks, twice as many as stages, and the stream's own
    const PingPongBarriers<kStages> barriers;
    Tile warp_tile;
    [[no_unique_address]] Sequence<TRAITS.packed> sequence;  // of the block

    __device__ __forceinline__ PingPongMainloop(const ForwardParams& p, const ptx::TensorMap& q_map,
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
          v_smem(k_smem + kStages * KTile::kBytes),
          o_smem(v_smem + kStages * VTile::kBytes),
          items(o_smem + OTile::kBytes),
          barriers{items + 32 * kStages + WorkStream<CFG, TRAITS>::kBytes},
          warp_tile(softmax_scale<TRAITS>(p), q_smem, k_smem, v_smem) {}

    __device__ __forceinline__ WorkStream<CFG, TRAITS> stream() const {
        return {params, items + 32 * kStages};
    }

    // Of the block of an item.
    __device__ __forceinline__ int first_key(const WorkItem& item) const {
        return stream().key_block(item) * CFG.B_c;
    }

    // Where the item of the block in a place lies.  A item outlives its block by a round.
    __device__ __forceinline__ unsigned slot(Position place) const {
        return items + 16 * (place.stage + kStages * place.parity);
    }

    // By one thread: ask for a block of K or V.
    template <typename KVTile>
    __device__ __forceinline__ void load(const ptx::TensorMap& map, unsigned target, unsigned full,
                                         const WorkItem& item) const {
        ptx::mbarrier_arrive_expect_tx(full, KVTile::kBytes);
        const BoxPlace box = Sequence<TRAITS.packed>::of(params, item.batch)
                                 .template kv_box<CFG.B_c>(first_key(item), item.batch);
#pragma unroll
        for (int panel = 0; panel < KVTile::kPanels; ++panel) {
            load_box<TRAITS.packed>(target + panel * KVTile::kPanelBytes, map, full,
                                    ptx::kEvictLast, KVTile::kPanelColumns * panel, item.kv_head(),
                                    box);
        }
    }

    // By one thread: publish a block's item and ask for its K.
    __device__ __forceinline__ void load_k(Position place, const WorkItem& item) const {
        item.store(slot(place));
        const unsigned full = barriers.k_full(place.stage);
        if (item.block >= 0) {
            load<KTile>(k_map, k_smem + place.stage * KTile::kBytes, full, item);
        } else {
            ptx::mbarrier_arrive(full);
        }
    }

    __device__ __forceinline__ void load_v(int stage, const WorkItem& item) const {
        load<VTile>(v_map, v_smem + stage * VTile::kBytes, barriers.v_full(stage), item);
    }

    // This warp's rows of Q and O.
    __device__ __forceinline__ BoxPlace q_box(const WorkItem& item,
                                              const Sequence<TRAITS.packed>& of_item) const {
        return of_item.template q_box<Tile::kRowsPerWarp>(
            item.first_query + warp_tile.warp * Tile::kRowsPerWarp, item.batch);
    }

    // Ask for this warp's rows of Q.
    __device__ __forceinline__ void load_q(const WorkItem& item) const {
        __syncwarp();
        if (!ptx::elect_sync()) return;
        const unsigned full = barriers.q_full(warp_tile.warp);
        ptx::mbarrier_arrive_expect_tx(full, QTile::kPanels * kWarpBytes);
        const auto of_item = Sequence<TRAITS.packed>::of(params, item.batch);
#pragma unroll
        for (int panel = 0; panel < QTile::kPanels; ++panel) {
            // The place last: where it is computed decides the machine code.
            load_box<TRAITS.packed>(
                q_smem + panel * QTile::kPanelBytes + warp_tile.warp * kWarpBytes, q_map, full,
                ptx::kEvictFirst, QTile::kPanelColumns * panel, item.head(), q_box(item, of_item));
        }
    }

    // The same of the tile whose first block is in place `next`.
    __device__ __forceinline__ void load_next_q(Position next) const {
        ptx::mbarrier_wait(barriers.k_full(next.stage), next.parity);
        const WorkItem item = WorkItem::load(slot(next));
        if (item.block >= 0) load_q(item);
    }

    __device__ __forceinline__ void wait_q(unsigned parity) {
        ptx::mbarrier_wait(barriers.q_full(warp_tile.warp), parity);
        if constexpr (Tile::kQStaysInRegisters) warp_tile.load_q_registers();
    }

    // The barrier through which a warp of `turn` gets its turn from the one before it.
    __device__ __forceinline__ int turn_barrier(int turn) const {
        return static_cast<int>(NamedBarrier::TURN) + warp_tile.warp % kSchedulers * kTurns + turn;
    }

    __device__ __forceinline__ bool has_last_turn() const {
        return warp_tile.warp / kSchedulers == kTurns - 1;
    }

    __device__ __forceinline__ void take_turn() const {
        ptx::bar_sync(turn_barrier(warp_tile.warp / kSchedulers), 64);
    }

    __device__ __forceinline__ void pass_turn() const {
        ptx::bar_arrive(turn_barrier((warp_tile.warp / kSchedulers + 1) % kTurns), 64);
    }

    // This warp has read all it wants of a ring's place.
    __device__ __forceinline__ void release(unsigned empty) const {
        __syncwarp();
        if (warp_tile.lane == 0) ptx::mbarrier_arrive(empty);
    }

    // Whether some of the tile's rows do not see all of the block.
    __device__ __forceinline__ bool masked(const WorkItem& item) const {
        if constexpr (!kMasked) return false;
        if constexpr (TRAITS.window) {
            return BlockRange::of<CFG.B_r, CFG.B_c, TRAITS>(params, sequence, item.first_query)
                .template masks<TRAITS>(stream().key_block(item));
        }
        return item.block >=
               BlockRange::of<CFG.B_r, CFG.B_c, TRAITS>(params, sequence, item.first_query)
                   .unmasked;
    }

    // Whether no row of this warp sees anything of a block, which is not the tile's last.
    __device__ __forceinline__ bool fully_masked(const WorkItem& item) const {
        const int last_row = item.first_query + (warp_tile.warp + 1) * Tile::kRowsPerWarp - 1;
        return item.block > 0 && first_key(item) > last_row + sequence.diagonal(params);
    }

    // Where the maxima of a tile's first and last block are taken: in the code of the usual block,
    // by a branch around them, or in that of the rare one.
    static constexpr bool kSharedMaxima = turn_order_of<CFG, TRAITS>().shared_maxima;

    // P from S of the block in place `now`, the `first` of its tile or not.  With `scores_missing`
    // S is yet to be multiplied, out of turn.
    __device__ __forceinline__ void exponentiate(const WorkItem& item, Position now, bool first,
                                                 bool scores_missing) {
        const unsigned k_offset = now.stage * KTile::kBytes;
        const bool partly = masked(item), last = item.block == 0;
        if constexpr (Tile::kStaleMax) {
            const bool needs_max = first || last || partly;
            auto softmax = [&](bool with_maxima) {
                if (last) load_next_q(now.next());
                change_scores(item);
                if (partly) warp_tile.mask(params, sequence, item.first_query, first_key(item));
                return warp_tile.stale_max_softmax(with_maxima);
            };
            if constexpr (kSharedMaxima) {
                if (scores_missing || !softmax(needs_max)) {
                    Products::multiply_qk(warp_tile, k_offset);
                    softmax(true);
                }
            } else {
                if (scores_missing || !needs_max) {
                    if (!scores_missing) {
                        change_scores(item);
                        if (warp_tile.stale_max_softmax(false)) return;
                    }
                    Products::multiply_qk(warp_tile, k_offset);
                }
                softmax(true);
            }
        } else {
            if (scores_missing) Products::multiply_qk(warp_tile, k_offset);
            if (last) load_next_q(now.next());
            change_scores(item);
            if (partly) warp_tile.mask(params, sequence, item.first_query, first_key(item));
            warp_tile.softmax.advance(warp_tile.s, warp_tile.o, first);
            warp_tile.exponentiate();
        }
    }

    __device__ __forceinline__ void change_scores(const WorkItem& item) {
        if constexpr (TRAITS.changes_scores()) {
            warp_tile.score_map =
                ScoreMap<TRAITS>::of(params, sequence.element(item.batch), item.head());
            warp_tile.change_scores(params, sequence, item.first_query, first_key(item),
                                    masked(item));
        }
    }

    // O of the tile, by way of this warp's own rows of its buffer.
    __device__ __forceinline__ void write_output(const WorkItem& item) {
        if (ptx::elect_sync()) ptx::cp_async_bulk_wait_group_read();
        __syncwarp();
        Epilogue<TRAITS, Tile>::stage(warp_tile, params, sequence, o_smem, item.batch, item.head(),
                                      item.first_query);
        ptx::fence_proxy_async_shared();
        __syncwarp();
        if (ptx::elect_sync()) {
            // Read again: ptxas 13.0 moves a sequence kept in registers here under a predicate of
            // the loop, and rows were written elsewhere.
            const BoxPlace box = q_box(item, Sequence<TRAITS.packed>::of(params, item.batch));
#pragma unroll
            for (int panel = 0; panel < OTile::kPanels; ++panel) {
                store_box<TRAITS.packed>(
                    o_map, o_smem + panel * OTile::kPanelBytes + warp_tile.warp * kWarpBytes,
                    OTile::kPanelColumns * panel, item.head(), box);
            }
            ptx::cp_async_bulk_commit_group();
        }
        __syncwarp();
    }

    __device__ __forceinline__ void mainloop() {
        Position now;
        unsigned q_parity = 0;
        typename Products::VRuns v_stream;
        load_q(stream().first_of(blockIdx.x));
        ptx::mbarrier_wait(barriers.k_full(0), 0);
        wait_q(0);
        if (has_last_turn()) pass_turn();  // the first turn is turn 0's
        bool scores_missing = true;        // the scores of the block in place `now`
        bool first = true;                 // it is the first of its tile
#pragma unroll 1
        while (true) {
            const Position next = now.next();
            const unsigned v_offset = now.stage * VTile::kBytes;
            const WorkItem item = WorkItem::load(slot(now));
            if constexpr (TRAITS.packed) {
                if (first) sequence = Sequence<true>::of(params, item.batch);
            }
            if (TRAITS.causal && fully_masked(item)) {
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
                scores_missing = true;
                now = next;
                continue;
            }
            exponentiate(item, now, first, scores_missing);
            Products::pin_softmax(warp_tile);
            scores_missing = false;
            release(barriers.k_empty(now.stage));
            ptx::mbarrier_wait(barriers.v_full(now.stage), now.parity);
            Products::start_pv(warp_tile, v_stream, v_offset);
            ptx::mbarrier_wait(barriers.k_full(next.stage), next.parity);
            const bool more = WorkItem::load_block(slot(next)) >= 0;
            const bool last = WorkItem::load_block(slot(now)) == 0;
            if (last && more) {
                q_parity ^= 1;
                wait_q(q_parity);
            }
            take_turn();
            Products::multiply_pv(warp_tile, v_stream, v_offset);
            // Behind the last block, of whatever is in shared memory: a branch would part the two
            // products.
            Products::multiply_qk(warp_tile, next.stage * KTile::kBytes);
            if (more || !has_last_turn()) pass_turn();  // nobody waits for the turn after the last
            release(barriers.v_empty(now.stage));
            if (warp_tile.warp == 0) refill(now);
            if (last) {
                write_output(WorkItem::load(slot(now)));
                warp_tile.restart();
            }
            if (!more) break;
            first = last;
            now = next;
        }
        // Shared memory must outlast the store that reads it.
        if (ptx::elect_sync()) ptx::cp_async_bulk_wait_group_read();
    }

    // By one warp, after its turn with V of the block in place `now`: refill the places it was
    // done with a block ago, of K of the same block and of V of the block before.
    __device__ __forceinline__ void refill(Position now) const {
        if (!ptx::elect_sync()) return;
        const WorkItem item = stream().last_published();
        if (item.block < 0) return;
        ptx::mbarrier_wait(barriers.k_empty(now.stage), now.parity);
        load_k(now.next_round(), stream().next(item));
        const Position before = now.previous();
        ptx::mbarrier_wait(barriers.v_empty(before.stage), before.parity);
        load_v(before.stage, item);
    }

    // By one thread: ask for the first blocks, all of K and all but one of V.
    __device__ __forceinline__ void fill() const {
        WorkItem item = stream().begin();
        for (int i = 0; i < kStages && item.block >= 0; ++i) {
            if (i > 0) item = stream().next(item);
            load_k(Position{i, 0}, item);
            if (i + 1 < kStages && item.block >= 0) load_v(i, item);
        }
    }

    __device__ __forceinline__ void run() {
        if (threadIdx.x == 0) barriers.init(CFG.n_warps);
        if constexpr (TRAITS.packed) {
            list_members<WholeCta<32 * CFG.n_warps>, CFG.B_r, TRAITS.causal>(params, q_smem);
            ptx::fence_proxy_async_shared();  // bulk copies come there next
        }
        __syncthreads();
        if constexpr (TRAITS.packed) {
            if (static_cast<int>(blockIdx.x) >= stream().tiles()) {  // fewer tiles than CTAs
                if (threadIdx.x == 0) stream().release_counters();
                return;
            }
        }
        if (warp_tile.warp == 0 && ptx::elect_sync()) fill();
        mainloop();
    }
};

}  // namespace fa_tune::sm80
