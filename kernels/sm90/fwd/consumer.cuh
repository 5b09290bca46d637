// A consumer warpgroup: the main loop over its work tiles and their key blocks.
//
// With `overlap`, the tensor cores work on the next scores and on the last product while this
// warpgroup's other units do softmax:
//
//     tensor   S(n-1)            | S(n-2)  O += P(n-1) V | S(n-3)  O += P(n-2) V | ...
//     others          soft(n-1)  |        soft(n-2) pack |        soft(n-3) pack | ...
//
// With `pingpong`, warpgroups take turns in issuing their pair of products, so that one's softmax
// falls into the others' products.  With `cross_tile_overlap`, a tile's last product is paired with
// the next tile's first scores, which are computed while O is written.
#pragma once

#include "ptx/shared_words.cuh"
#include "sm90/fwd/epilogue.cuh"
#include "sm90/fwd/mask.cuh"
#include "sm90/fwd/products.cuh"
#include "sm90/fwd/scheduler.cuh"

namespace fa_tune::sm90 {

template <Sm90Config CFG, WorkloadTraits TRAITS>
struct Consumer {
    using ProductsType = Products<CFG, TRAITS.diagonal()>;
    static constexpr int kScores = ProductsType::kScores;
    // A window leaves a tile too few blocks to watch.
    static constexpr bool kWatches = CFG.rescale == Rescale::WATCHED_MAX && !TRAITS.window;
    static constexpr bool kStaleMax =
        CFG.rescale == Rescale::STALE_MAX || CFG.rescale == Rescale::WATCHED_MAX;
    // Of the four warps in a tile, besides one for every second block: what maxima that grow at its
    // beginning take is no sign of more.
    static constexpr int kFewCorrections = 12;
    static constexpr bool kExactMax = CFG.rescale == Rescale::EXACT_MAX;
    // Whether blocks with a mask go through the loop of those without.
    static constexpr bool kSingleLoop = CFG.single_loop && TRAITS.diagonal();
    // Whether the first rows of a tile see nothing of the last rows' last block.
    static constexpr bool kSkipsHidden = TRAITS.causal && CFG.B_r() - 64 >= CFG.B_c;

    // Whether Q is given back before the softmax of the tile's last block, which without a window
    // is block 0, rather than after it.
    static constexpr bool kGivesQBack = CFG.o_apart() && !TRAITS.window;

    const ForwardParams& p;
    const SharedAddress<CFG> smem;
    const int warpgroup;  // this one among the consumers
    const int lane, warp;
    const Epilogue<CFG, TRAITS> epilogue;
    RingPosition<CFG.q_stages> q_ring;
    RingReader<CFG.stages, CFG.early_test_wait> k, v;
    using Rows = Softmax<CFG, kScores>;
    Rows softmax;
    float a[2];            // what O must be multiplied with
    bool watched = false;  // whether the warpgroup's last tile had many corrections
    int block;             // the key block whose scores come next, or last came
    // What the tile belongs to, and the one whose scores begin.
    [[no_unique_address]] Sequence<TRAITS.packed> sequence, next_sequence;
    ScoreMap<TRAITS> score_map;
    ProductsType products;

    __device__ __forceinline__ Consumer(const ForwardParams& params, const ptx::TensorMap& o_map,
                                        const SharedAddress<CFG>& smem, int warpgroup)
        : p(params),
          smem(smem),
          warpgroup(warpgroup),
          lane(threadIdx.x % 32),
          warp(threadIdx.x / 32 % 4),
          epilogue{params, o_map, smem, warpgroup, warp, lane},
          k{smem.k_full(0), smem.k_empty(0)},
          v{smem.v_full(0), smem.v_empty(0)},
          products(smem, warpgroup) {
        softmax.set_scale(softmax_scale<TRAITS>(params));
        softmax.corrections = 0;
    }

    __device__ __forceinline__ void run(const WorkTile& first) {
        if (CFG.pingpong && warpgroup == CFG.mma_warpgroups - 1) pass_turn_to(0);
        ConsumerTiles<CFG, TRAITS> tiles{{smem}};
        WorkTile tile = first;
        if constexpr (CFG.splits > 1) {
            const KeyBlocks own = own_blocks(tile, next_sequence);
            if (own.first == own.end) {
                return epilogue.template run_without_keys<Rows>(tile, next_sequence);
            }
        }
        begin_scores(tile, true);
        wait_scores(true);
        int unreleased = -1;  // a Q buffer from which O may still be on its way
        bool more;
        do {
            sequence = next_sequence;
            if constexpr (kSkipsHidden) {
                const int last = last_block(tile);
                skip_hidden(CFG.splits == 1 ? last : max(last, lowest_block(tile)));
            }
            if (kGivesQBack && block == 0) epilogue.give_q_back(q_slot());
            first_softmax(tile);
            if (unreleased >= 0) epilogue.release_q(unreleased);
            const int accumulate = mainloop(tile);
            const int blocks = own_blocks(tile, sequence).end - block;
            if (CFG.o_apart() && !kGivesQBack) epilogue.give_q_back(q_slot());
            const WorkTile next = tiles.next(p, next_sequence);
            more = next.number >= 0;
            const int slot = q_slot();
            q_ring.advance();
            v.wait();
            if constexpr (CFG.cross_tile_overlap) {
                take_turn();
                multiply_pv(accumulate);
                begin_scores(next, more);
                pass_turn();
                ptx::wgmma_wait_group<1>();
            } else {
                multiply_pv(accumulate);
                ptx::wgmma_wait_group<0>();
            }
            keep_registers(products.o);
            // A block has to have the rows that are read; 0: every key has a value.
            const float of_v = Rows::kByHalves && CFG.B_c >= 32 ? magnitude_of_v() : 0.f;
            v.release(lane);
            epilogue.run(tile, sequence, slot, softmax, products.o, {blocks, of_v});
            if constexpr (kWatches) {
                watched = 2 * softmax.corrections >= blocks + kFewCorrections;
                softmax.corrections = 0;
            }
            if constexpr (CFG.o_apart()) {
            } else if constexpr (CFG.q_stages == 1) {
                epilogue.release_q(slot);
            } else {
                unreleased = slot;
            }
            if constexpr (CFG.scheduler != Scheduler::SINGLE) {
                if constexpr (!CFG.cross_tile_overlap) begin_scores(next, more);
                wait_scores(more);
                tile = next;
            }
        } while (more);
        epilogue.wait();
    }

    // All blocks but the first; returns whether there was one, that is, whether O has begun.
    __device__ __forceinline__ int mainloop(const WorkTile& tile) {
        if constexpr (TRAITS.window || CFG.splits > 1) {
            return windowed_mainloop(tile);
        } else {
            return whole_mainloop(tile);
        }
    }

    // Without a window.
    __device__ __forceinline__ int whole_mainloop(const WorkTile& tile) {
        const int first_row = this->first_row(tile);
        const int unmasked = TRAITS.causal ? unmasked_blocks(tile) : 0;
        int accumulate = 0;
        if constexpr (TRAITS.causal && !kSingleLoop) {
#pragma unroll 1
            for (; block > unmasked; --block) {
                step<true>(block - 1, first_row, accumulate);
                accumulate = 1;
            }
        }
        if constexpr (kExactMax) softmax.look_at_maxima();
        if constexpr (kWatches) {
            if (softmax.any_lane(watched)) {
                softmax.look_at_maxima();
#pragma unroll 1
                for (; block > 0; --block) {
                    step<false, true>(block - 1, first_row, accumulate,
                                      kSingleLoop && block > unmasked);
                    accumulate = 1;
                }
                return accumulate;
            }
        }
#pragma unroll 1
        for (; block > 0; --block) {
            step<false>(block - 1, first_row, accumulate, kSingleLoop && block > unmasked);
            accumulate = 1;
        }
        return accumulate;
    }

    // The same with a window, or of a cluster: blocks with a mask, then without, then with one.
    __device__ __forceinline__ int windowed_mainloop(const WorkTile& tile) {
        const int first_row = this->first_row(tile);
        const int last = lowest_block(tile);
        const int whole = TRAITS.window ? max(last, first_whole_block(tile)) : last;
        const int unmasked = max(last, TRAITS.causal ? unmasked_blocks(tile) : block);
        int accumulate = 0;
        if constexpr (kSingleLoop) {
            if constexpr (kExactMax) softmax.look_at_maxima();
#pragma unroll 1
            for (; block > last; --block) {
                step<false>(block - 1, first_row, accumulate, block > unmasked || block <= whole);
                accumulate = 1;
            }
        } else {
            // Either loop once, for the code's size.
            int stop = unmasked;
#pragma unroll 1
            while (true) {
#pragma unroll 1
                for (; block > stop; --block) {
                    step<true>(block - 1, first_row, accumulate);
                    accumulate = 1;
                }
                if (stop == last) break;
                if constexpr (kExactMax) softmax.look_at_maxima();
#pragma unroll 1
                for (; block > whole; --block) {
                    step<false>(block - 1, first_row, accumulate);
                    accumulate = 1;
                }
                stop = last;
            }
        }
        return accumulate;
    }

    // Scores and softmax of `block`, and the product of the block before it (the next higher).  A
    // block with a mask has a step of its own (kMasked), or is `masked` on the way through the
    // others'.
    template <bool kMasked, bool kWatched = false>
    __device__ __forceinline__ void step(int block, int first_row, int accumulate,
                                         bool masked = false) {
        if constexpr (CFG.overlap) {
            k.wait();
            take_turn();
            multiply_qk();
            v.wait();
            multiply_pv(accumulate);
            pass_turn();
            ptx::wgmma_wait_group<1>();
            keep_registers(products.s);
            k.release(lane);
            if (kGivesQBack && block == 0) epilogue.give_q_back(q_slot());
            change_scores(first_row, block, kMasked || masked);
            if constexpr (kStaleMax && !kMasked && !kWatched) {
                if (masked) mask(first_row, block);
                typename Rows::Early early;
                const bool refreshed = begin_stale_max_softmax(early, block);
                ptx::wgmma_wait_group<0>();
                keep_registers(products.o);
                v.release(lane);
                stale_max_softmax(refreshed, early);
            } else if constexpr (!kMasked && (kExactMax || kWatched)) {
                if (masked) mask(first_row, block);
                typename Rows::Early early;
                begin_max_softmax(early);
                ptx::wgmma_wait_group<0>();
                keep_registers(products.o);
                v.release(lane);
                max_softmax(early);
            } else {
                if constexpr (kMasked) mask(first_row, block);
                softmax.template update<false>(products.s, a, block == 0);
                ptx::wgmma_wait_group<0>();
                keep_registers(products.o);
                v.release(lane);
                products.pack(softmax);
                rescale();
            }
        } else {
            v.wait();
            multiply_pv(accumulate);
            k.wait();
            take_turn();
            multiply_qk();
            pass_turn();
            ptx::wgmma_wait_group<0>();
            keep_registers(products.o);
            keep_registers(products.s);
            v.release(lane);
            k.release(lane);
            change_scores(first_row, block, kMasked || masked);
            if constexpr (kStaleMax && !kMasked && !kWatched) {
                if (masked) mask(first_row, block);
                const bool refreshed = refresh_max_first(block);
                typename Rows::Early early;
                softmax.begin_with_stale_max(products.s, early);
                stale_max_softmax(refreshed, early);
            } else if constexpr (!kMasked && (kExactMax || kWatched)) {
                if (masked) mask(first_row, block);
                typename Rows::Early early;
                begin_max_softmax(early);
                max_softmax(early);
            } else {
                if constexpr (kMasked) mask(first_row, block);
                softmax.template update<false>(products.s, a, block == 0);
                products.pack(softmax);
                rescale();
            }
        }
    }

    // --- scores ----------------------------------------------------------------------------

    // The tile's first scores.  Without a tile those of whatever is in shared memory, for a branch
    // around wgmma would make the compiler wait for each of them.
    __device__ __forceinline__ void begin_scores(const WorkTile& tile, bool valid) {
        block = own_blocks(tile, next_sequence).end - 1;
        if (valid) {
            ptx::mbarrier_wait(smem.q_full(q_slot()), q_ring.parity);
            k.wait();
            if constexpr (TRAITS.changes_scores()) {
                score_map = ScoreMap<TRAITS>::of(p, next_sequence.element(tile.batch), tile.head);
            }
        }
        multiply_qk();
    }

    __device__ __forceinline__ void wait_scores(bool valid) {
        ptx::wgmma_wait_group<0>();
        keep_registers(products.s);
        if (valid) k.release(lane);
    }

    // Blocks after `last` no row of the warpgroup sees, though others of the CTA do.  The first
    // one's scores are there, computed before that was asked.  Without products between them,
    // nothing but __syncwarp keeps a warp from giving a block back while some of its lanes have
    // yet to see that it came: two blocks later they could wait for ever.
    __device__ __forceinline__ void skip_hidden(int last) {
        if (block <= last) return;
#pragma unroll 1
        for (; block > last + 1; --block) {
            take_turn();
            pass_turn();
            k.wait();
            __syncwarp();
            k.release(lane);
            v.wait();
            __syncwarp();
            v.release(lane);
        }
        k.wait();
        take_turn();
        multiply_qk();
        pass_turn();
        v.wait();
        __syncwarp();
        v.release(lane);
        wait_scores(true);
        --block;
    }

    __device__ __forceinline__ void multiply_qk() {
        products.multiply_qk(q_ring.stage, k.position.stage);
    }
    __device__ __forceinline__ void multiply_pv(int accumulate) {
        products.multiply_pv(v.position.stage, accumulate);
    }

    // --- softmax ---------------------------------------------------------------------------

    __device__ __forceinline__ void first_softmax(const WorkTile& tile) {
        change_scores(first_row(tile), block, TRAITS.diagonal() || TRAITS.ragged);
        if constexpr (TRAITS.diagonal() || TRAITS.ragged) {
            // That there are packed sequences says nothing of a length.
            const bool whole = TRAITS.packed && !TRAITS.diagonal() && last_block_is_whole();
            if (!whole) mask(first_row(tile), block);
        }
        constexpr bool kRaise = CFG.adaptive_max && TRAITS.diagonal();
        softmax.template update<true, kRaise>(products.s, a, block == 0);
        if constexpr (Rows::kFinalIsExact) softmax.lower_max_of_one_key(products.s);
        a[0] = a[1] = 1.f;
        products.pack(softmax);
    }

    // Whether the block is likely to outgrow the maxima, so that these come before the
    // exponentials.
    __device__ __forceinline__ bool max_comes_first() const {
        if constexpr (!Rows::kMaxMayBeFirst) return false;
        return softmax.any_lane(softmax.max_first > 0);
    }

    // New maxima where they come first; returns whether they did, and O has yet to be multiplied by
    // a.
    __device__ __forceinline__ bool refresh_max_first(int block) {
        const bool max_first = max_comes_first();
        if (max_first) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                softmax.refresh_max(products.s, a, i, block == 0, softmax.samples());
            }
        }
        return max_first;
    }

    // Maxima of rows in turn, and the first row's exponentials.  A sample has code of its own: a
    // branch among exponentials would keep maxima from coming beside them.
    __device__ __forceinline__ void refresh_max_in_turn(typename Rows::Early& early, int block) {
        if (softmax.samples()) {
            softmax.refresh_max(products.s, a, 0, block == 0, true);
            softmax.begin_with_stale_max(products.s, early);
            softmax.template refresh_max_after<Rows::kSampled>(early.p[0], products.s, a, 1,
                                                               block == 0);
        } else {
            softmax.refresh_max(products.s, a, 0, block == 0);
            softmax.begin_with_stale_max(products.s, early);
            softmax.template refresh_max_after<1>(early.p[0], products.s, a, 1, block == 0);
        }
    }

    // What comes before the wait for the last product, which reads P; returns as refresh_max_first.
    __device__ __forceinline__ bool begin_stale_max_softmax(typename Rows::Early& early,
                                                            int block) {
        if constexpr (!CFG.rows_in_turn) {
            const bool refreshed = refresh_max_first(block);
            softmax.begin_with_stale_max(products.s, early);
            if constexpr (Rows::kEarly > 0) {
                const auto& part = early.part;
                force_exponentials_before_here(
                    fmaxf(fmaxf(part[0][0], part[0][1]), fmaxf(part[1][0], part[1][1])),
                    smem.scratch());
            }
            return refreshed;
        } else {
            const bool max_first = max_comes_first();
            if (max_first) {  // row 1's maximum beside row 0's exponentials
                refresh_max_in_turn(early, block);
            } else {
                softmax.begin_with_stale_max(products.s, early);
            }
            force_exponentials_before_here(fmaxf(early.part[0][0], early.part[0][1]),
                                           smem.scratch());
            return max_first;
        }
    }

    // P by the maxima that are there; where these turn out to be too low, by new ones.  Nothing of
    // the tile is under way, so that its scores can be taken twice.
    __device__ __forceinline__ void stale_max_softmax(bool refreshed, typename Rows::Early& early) {
        typename Rows::BlockSums sums;
        softmax.with_stale_max(products.s, early, products.probabilities, sums);
        bool overflowed;
        if (refreshed) {
            products.scale_output(a);
            overflowed = softmax.decide_max_first(a, sums);
        } else {
            overflowed = softmax.overflowed(sums);
        }
        if (overflowed) refresh_max(sums);
        softmax.add(sums);
        products.keep_probabilities();
    }

    // New maxima and P by them, for the rows that need it.  Once is enough: no P is above 1
    // afterwards, but where a score is +inf or NaN.
    __device__ __forceinline__ void refresh_max(typename Rows::BlockSums& sums) {
        const bool again[2] = {softmax.overflowed(sums, 0), softmax.overflowed(sums, 1)};
        int grew_much = 0;  // lanes with a row that did
        bool any_large = false;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            if (!again[i]) continue;
            softmax.template refresh_max<true>(products.s, a, i, true);
            const bool large = softmax.any_lane(softmax.large_max(i));
            products.scale_output(a, i);
            grew_much += softmax.count_lanes(a[i] < softmax.kGrewMuch);
            softmax.with_new_max(products.s, products.probabilities, sums, i, large);
            any_large |= large;
        }
        softmax.max_first = any_large || Rows::kMaxMayBeFirst && grew_much >= 32 ? 1 : 0;
        if constexpr (kWatches) ++softmax.corrections;
    }

    // With maxima in every block, what comes before the wait for the last product: maxima, with
    // rows_in_turn that of row 1 beside row 0's exponentials.
    __device__ __forceinline__ void begin_max_softmax(typename Rows::Early& early) {
        softmax.take_maxima(products.s, a, 0, CFG.rows_in_turn ? 1 : 2, 0.f);
        softmax.begin_with_stale_max(products.s, early);
        if constexpr (CFG.rows_in_turn) softmax.take_maxima(products.s, a, 1, 2, early.p[0]);
        if constexpr (Rows::kEarly > 0) {
            const auto& part = early.part;
            float sum = fmaxf(part[0][0], part[0][1]);
            if constexpr (!CFG.rows_in_turn) sum = fmaxf(sum, fmaxf(part[1][0], part[1][1]));
            force_exponentials_before_here(sum, smem.scratch());
        }
    }

    // P by these maxima.
    __device__ __forceinline__ void max_softmax(typename Rows::Early& early) {
        typename Rows::BlockSums sums;
        if (softmax.any_lane(a[0] != 1.f || a[1] != 1.f)) {
            products.scale_output(a);
            softmax.look_at_maxima();
            if constexpr (kWatches) softmax.count_jumps(a);
        }
        softmax.with_stale_max(products.s, early, products.probabilities, sums);
        if (softmax.any_special && softmax.any_lane(softmax.large_max(0) || softmax.large_max(1))) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                softmax.with_new_max(products.s, products.probabilities, sums, i, true);
            }
        }
        softmax.add(sums, a);
        products.keep_probabilities();
    }

    __device__ __forceinline__ void rescale() {
        if constexpr (CFG.rescale != Rescale::EACH_BLOCK) {
            if (!__any_sync(kAllLanes, a[0] != 1.f || a[1] != 1.f)) return;
        }
        products.scale_output(a);
    }

    __device__ __forceinline__ void mask(int first_row, int block) {
        mask_scores<TRAITS.causal, TRAITS.window>(
            products.s, first_row + 16 * warp + lane / 4, block * CFG.B_c + 2 * (lane % 4),
            sequence.keys(p), sequence.diagonal(p), sequence.first_diagonal(p));
    }

    // Products to scores.
    __device__ __forceinline__ void change_scores(int first_row, int block, bool masked) {
        if constexpr (TRAITS.changes_scores()) {
            if (masks_before_change<TRAITS>() && masked) mask(first_row, block);
            const int row = first_row + 16 * warp + lane / 4;
            const int column = block * CFG.B_c + 2 * (lane % 4);
            score_map.change(reinterpret_cast<float (&)[kScores / 4][4]>(products.s), row, column,
                             sequence.alibi_diagonal(p), p);
        }
    }

    // The largest of 64 elements of the last block's V, in bf16: two of each of 32 rows.
    __device__ __forceinline__ float magnitude_of_v() const {
        const int two = ptx::ld_shared(smem.v(v.position.stage) + lane * (ptx::kSwizzleBytes + 4));
        constexpr int kInfinity = 0x7f80;
        const int low = two & 0x7fff, high = two >> 16 & 0x7fff;
        const int largest = max(low < kInfinity ? low : 0, high < kInfinity ? high : 0);
        return __int_as_float(__reduce_max_sync(kAllLanes, largest) << 16);
    }

    // --- where the warpgroup is ------------------------------------------------------------

    __device__ __forceinline__ int q_slot() const {
        return q_ring.stage * CFG.mma_warpgroups + warpgroup;
    }

    __device__ __forceinline__ int first_row(const WorkTile& tile) const {
        return sm90::first_row<CFG>(tile, warpgroup);
    }

    // What the CTA visits; without a cluster `first` is not said.
    __device__ __forceinline__ KeyBlocks own_blocks(const WorkTile& tile,
                                                    const Sequence<TRAITS.packed>& sequence) const {
        if constexpr (CFG.splits > 1) {
            return key_blocks_of_cta<CFG, TRAITS>(p, tile, sequence);
        } else {
            return {0, key_blocks<CFG, TRAITS>(p, tile, sequence)};
        }
    }

    // The last block that the CTA visits, with a window or a cluster.
    __device__ __forceinline__ int lowest_block(const WorkTile& tile) const {
        if constexpr (CFG.splits > 1) return own_blocks(tile, sequence).first;
        return first_key_block<CFG, TRAITS>(p, tile, sequence,
                                            key_blocks<CFG, TRAITS>(p, tile, sequence));
    }

    // Key blocks below this one are seen whole by all rows of the warpgroup.
    __device__ __forceinline__ int unmasked_blocks(const WorkTile& tile) const {
        return max(0, first_row(tile) + sequence.diagonal(p) + 1) / CFG.B_c;
    }

    // Key blocks from this one on start within the window of all rows of the warpgroup.
    __device__ __forceinline__ int first_whole_block(const WorkTile& tile) const {
        const int key = first_key_seen(first_row(tile) + 63, sequence.first_diagonal(p));
        return (max(0, key) + CFG.B_c - 1) / CFG.B_c;
    }

    // Whether the sequence ends where its last block does.
    __device__ __forceinline__ bool last_block_is_whole() const {
        return sequence.keys(p) > 0 && sequence.keys(p) % CFG.B_c == 0;
    }

    // The last block of which a row of the warpgroup sees a key; if none sees any, the first.
    __device__ __forceinline__ int last_block(const WorkTile& tile) const {
        return max(0, first_row(tile) + 63 + sequence.diagonal(p)) / CFG.B_c;
    }

    // Warpgroups issue their products in turn, each when the one before it has issued its own.
    __device__ __forceinline__ void take_turn() {
        if constexpr (CFG.pingpong) ptx::bar_sync(turn_of(warpgroup), 256);
    }

    __device__ __forceinline__ void pass_turn() {
        if constexpr (CFG.pingpong) {
            pass_turn_to(warpgroup + 1 == CFG.mma_warpgroups ? 0 : warpgroup + 1);
        }
    }

    __device__ __forceinline__ static void pass_turn_to(int warpgroup) {
        ptx::bar_arrive(turn_of(warpgroup), 256);
    }

    __device__ __forceinline__ static int turn_of(int warpgroup) {
        return static_cast<int>(NamedBarrier::TURN) + warpgroup;
    }
};

}  // namespace fa_tune::sm90
