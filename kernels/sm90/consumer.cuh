// A consumer warpgroup: the flow of one over its tiles and their key blocks.
//
// With `overlap`, the tensor cores work on the next scores and on the last product while this
// warpgroup's other units do softmax:
//
//     tensor   S(n-1)            | S(n-2)  O += P(n-1) V | S(n-3)  O += P(n-2) V | ...
//     others          soft(n-1)  |        soft(n-2) pack |        soft(n-3) pack | ...
//
// With `pingpong`, warpgroups take turns in issuing their pair of products, so that one's softmax
// falls into the others' products.  With `carry`, a tile's last product is paired with the next
// tile's first scores, which are computed while O is written.
#pragma once

#include "ptx/pin.cuh"
#include "sm90/consumer_base.cuh"

template <Sm90Config CFG, WorkloadTraits TRAITS>
struct Consumer : ConsumerBase<CFG, TRAITS> {
    using Base = ConsumerBase<CFG, TRAITS>;
    using Base::a, Base::block, Base::group, Base::keep_registers, Base::lane, Base::o, Base::p;
    using Base::Base;
    using Base::q_ring, Base::smem, Base::softmax, Base::warp;
    using typename Base::Shared;
    static constexpr int kTiles = Base::kTiles;
    // Whether blocks with a mask go through the step of those without, which saves a quarter of the
    // code: 1 % faster with these heads, 2 % slower with others (docs/kernel-sm90.md).
    static constexpr bool kOneStep =
        Base::kTrust && TRAITS.causal && (CFG.d_head == 64 || CFG.d_head == 256);
    float s[kTiles][Base::kScores];

    __device__ __forceinline__ void run(const Tile& first) {
        if (CFG.pingpong && group == CFG.consumers - 1) ptx::named_barrier_arrive(1, 256);
        ConsumerTiles<CFG> tiles{{smem}};
        Tile tile = first;
        begin(tile, true);
        scores_are_there(true);
        int unreleased = -1;  // a Q buffer from which O may still be on its way
        bool more;
        do {
            if constexpr (Base::kSkipsHidden) skip_hidden(Base::last_block(tile));
            first_softmax(tile);
            if (unreleased >= 0) Base::release_q(unreleased);
            const int accumulate = remaining_steps(tile);
            const Tile next = tiles.next();
            more = next.number >= 0;
            if constexpr (Base::kEarlyRescale) {
                if (accumulate) rescale();
            }
            const int slot = Base::q_slot();
            q_ring.advance();
            Base::wait_v();
            if constexpr (CFG.carry) {
                take_turn();
                Base::multiply_pv(accumulate);
                begin(next, more);
                pass_turn();
                ptx::wgmma_wait_group<kTiles>();
            } else {
                Base::multiply_pv(accumulate);
                ptx::wgmma_wait_group<0>();
            }
            keep_tiles(o);
            Base::release_v();
            Base::finish(tile, slot);
            if constexpr (CFG.q_stages == 1) {
                Base::release_q(slot);
            } else {
                unreleased = slot;
            }
            if constexpr (CFG.scheduler != Scheduler::SINGLE) {
                if constexpr (!CFG.carry) begin(next, more);
                scores_are_there(more);
                tile = next;
            }
        } while (more);
        if (warp == 0 && ptx::elect_one()) ptx::bulk_wait_group_read();
    }

    // The tile's first scores.  Without a tile those of whatever is in shared memory, for a branch
    // around wgmma would make the compiler wait for each of them.
    __device__ __forceinline__ void begin(const Tile& tile, bool valid) {
        block = key_blocks<CFG, TRAITS>(p, tile) - 1;
        if (valid) {
            Base::wait_q();
            if constexpr (CFG.q_registers) Base::load_q_registers();
            Base::wait_k();
        }
        Base::multiply_qk(s);
    }

    __device__ __forceinline__ void scores_are_there(bool valid) {
        ptx::wgmma_wait_group<0>();
        keep_tiles(s);
        if (valid) Base::release_k();
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
            Base::wait_k();
            __syncwarp();
            Base::release_k();
            Base::wait_v();
            __syncwarp();
            Base::release_v();
        }
        Base::wait_k();
        take_turn();
        Base::multiply_qk(s);
        pass_turn();
        Base::wait_v();
        __syncwarp();
        Base::release_v();
        scores_are_there(true);
        --block;
    }

    __device__ __forceinline__ void first_softmax(const Tile& tile) {
        const int first_row = Base::first_row(tile);
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
            if constexpr (CFG.split_diagonal && TRAITS.causal) {
                // The last row of the tile ends before the upper half of the block begins.
                const int end = first_row + 64 * m + 64 + p.diagonal;
                if (end <= block * CFG.B_c + CFG.B_c / 2) {
                    first_softmax<Base::kScores / 2>(m, first_row);
                } else {
                    first_softmax<Base::kScores>(m, first_row);
                }
            } else {
                first_softmax<Base::kScores>(m, first_row);
            }
            a[m][0] = a[m][1] = 1.f;
            Base::pack(s, m);
        }
    }

    // Of a tile whose first kCount scores alone count.
    template <int kCount>
    __device__ __forceinline__ void first_softmax(int m, int first_row) {
        constexpr bool kMasked = TRAITS.causal || TRAITS.ragged;
        if constexpr (kMasked) mask<kCount>(m, first_row, block);
        softmax[m].template update<true, kCount>(s[m], a[m]);
    }

    // All blocks but the first; returns whether there was one, that is, whether O has begun.
    __device__ __forceinline__ int remaining_steps(const Tile& tile) {
        const int first_row = Base::first_row(tile);
        const int unmasked = TRAITS.causal ? Base::unmasked_blocks(tile) : 0;
        int accumulate = 0;
        if constexpr (TRAITS.causal && !kOneStep) {
#pragma unroll 1
            for (; block > unmasked; --block) {
                step<true>(block - 1, first_row, accumulate);
                accumulate = 1;
            }
        }
#pragma unroll 1
        for (; block > 0; --block) {
            step<false>(block - 1, first_row, accumulate, kOneStep && block > unmasked);
            accumulate = 1;
        }
        return accumulate;
    }

    // Warpgroups issue their products in turn, each when the one before it has issued its own.
    __device__ __forceinline__ void take_turn() {
        if constexpr (CFG.pingpong) ptx::named_barrier_sync(1 + group, 256);
    }

    __device__ __forceinline__ void pass_turn() {
        if constexpr (CFG.pingpong) {
            ptx::named_barrier_arrive(1 + (group + 1 == CFG.consumers ? 0 : group + 1), 256);
        }
    }

    template <int kCount = Base::kScores>
    __device__ __forceinline__ void mask(int m, int first_row, int block) {
        Base::template mask<kCount>(s[m], first_row + 64 * m, block * CFG.B_c);
    }

    __device__ __forceinline__ void rescale() {
#pragma unroll
        for (int m = 0; m < kTiles; ++m) Base::rescale(m);
    }

    template <int kCount>
    __device__ __forceinline__ static void keep_tiles(float (&values)[kTiles][kCount]) {
#pragma unroll
        for (int m = 0; m < kTiles; ++m) keep_registers(values[m]);
    }

    // Scores and softmax of `block`, and the product of the block before it (the next higher).
    // With two tiles the softmax of one falls into the products of the other as well.  A block with
    // a mask has a step of its own (kMasked), or is `masked` on the way through the others'.
    template <bool kMasked>
    __device__ __forceinline__ void step(int block, int first_row, int accumulate,
                                         bool masked = false) {
        if constexpr (CFG.overlap) {
            Base::wait_k();
            take_turn();
            Base::multiply_qk(s);
            if constexpr (Base::kEarlyRescale) rescale();
            Base::wait_v();
            Base::multiply_pv(accumulate);
            pass_turn();
            if constexpr (Base::kTrust && !kMasked) {
                ptx::wgmma_wait_group<kTiles>();
                keep_tiles(s);
                Base::release_k();
                if (masked) {
#pragma unroll
                    for (int m = 0; m < kTiles; ++m) mask(m, first_row, block);
                }
                trust<0>();
                if constexpr (kTiles > 1) trust<1>();
            } else {
                scores<kMasked, 0>(first_row, block);
                if constexpr (kTiles > 1) scores<kMasked, 1>(first_row, block);
                products<0>();
                if constexpr (kTiles > 1) products<1>();
            }
        } else {
            Base::wait_v();
            Base::multiply_pv(accumulate);
            Base::wait_k();
            take_turn();
            Base::multiply_qk(s);
            pass_turn();
            ptx::wgmma_wait_group<0>();
            keep_tiles(o);
            keep_tiles(s);
            Base::release_v();
            Base::release_k();
#pragma unroll
            for (int m = 0; m < kTiles; ++m) {
                if constexpr (Base::kTrust && !kMasked) {
                    if (masked) mask(m, first_row, block);
                    Base::trust(s, m);
                } else {
                    if constexpr (kMasked) mask(m, first_row, block);
                    softmax[m].template update<false>(s[m], a[m]);
                    Base::pack(s, m);
                    Base::rescale(m);
                }
            }
        }
    }

    // Softmax of tile m, when its scores are there; the other products go on.
    template <bool kMasked, int m>
    __device__ __forceinline__ void scores(int first_row, int block) {
        ptx::wgmma_wait_group<2 * kTiles - 1 - m>();
        keep_registers(s[m]);
        if constexpr (m == kTiles - 1) Base::release_k();
        if constexpr (kMasked) mask(m, first_row, block);
        softmax[m].template update<false>(s[m], a[m]);
    }

    // Softmax of tile m by the maxima that are there, when the last product has read P.
    template <int m>
    __device__ __forceinline__ void trust() {
        ptx::wgmma_wait_group<kTiles - 1 - m>();
        keep_registers(o[m]);
        if constexpr (m == kTiles - 1) Base::release_v();
        Base::trust(s, m);
    }

    // P of tile m for the next product, when the last one is there.
    template <int m>
    __device__ __forceinline__ void products() {
        if constexpr (CFG.pin) {
            ptx::pin_before_here(fminf(softmax[m].row_sum[0], softmax[m].row_sum[1]),
                                 smem + Shared::kScratch);
        }
        ptx::wgmma_wait_group<kTiles - 1 - m>();
        keep_registers(o[m]);
        if constexpr (m == kTiles - 1) Base::release_v();
        Base::pack(s, m);
        if constexpr (!Base::kEarlyRescale) Base::rescale(m);
    }
};
