// A consumer warpgroup: 64 query rows of S, P and O in registers.
//
// With `overlap`, the tensor cores work on the next scores and on the last product while this
// warpgroup's other units do softmax:
//
//     tensor   S(n-1)            | S(n-2)  O += P(n-1) V | S(n-3)  O += P(n-2) V | ...
//     others          soft(n-1)  |        soft(n-2) pack |        soft(n-3) pack | ...
//
// With `pingpong`, warpgroups take turns in issuing their pair of products, so that one's softmax
// falls into the others' products.
#pragma once

#include "ptx/convert.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/stmatrix.cuh"
#include "ptx/tma.cuh"
#include "ptx/warpgroup.cuh"
#include "ptx/wgmma.cuh"
#include "sm90/mask.cuh"
#include "sm90/ring.cuh"
#include "sm90/scheduler.cuh"
#include "sm90/shared_memory.cuh"
#include "sm90/softmax.cuh"

template <Sm90Config CFG, WorkloadTraits TRAITS>
struct Consumer {
    using Shared = SharedMemory<CFG>;
    static constexpr bool kBf16 = CFG.dtype == DType::BF16;
    static constexpr int kScores = CFG.B_c / 2;     // of a thread
    static constexpr int kOutputs = CFG.d_head / 2;
    static constexpr int kStepsPV = CFG.B_c / 16;
    static constexpr bool kEarlyRescale = CFG.rescale == 1;
    static constexpr bool kLazyRescale = CFG.rescale == 2;
    using ProductQK = ptx::WgmmaM64K16<CFG.B_c, kBf16>;
    using ProductPV = ptx::WgmmaM64K16<CFG.d_head, kBf16>;

    const ForwardParams& p;
    const ptx::TensorMap& o_map;
    const unsigned smem;
    const int group;  // this warpgroup among the consumers
    const int lane, warp;
    const ptx::WgmmaDescriptor q_base, k_base, v_base;  // descriptors of stage 0
    RingPosition<CFG.q_stages> q_ring;
    RingPosition<CFG.stages> k_ring, v_ring;
    Softmax<kScores, kLazyRescale, TRAITS.causal> softmax;
    float s[kScores];
    float o[kOutputs];
    unsigned probabilities[kStepsPV][4];
    float a[2];
    int block;  // the key block whose scores come next, or last came

    __device__ __forceinline__ Consumer(const ForwardParams& params, const ptx::TensorMap& o_map,
                                        unsigned smem, int group)
        : p(params),
          o_map(o_map),
          smem(smem),
          group(group),
          lane(threadIdx.x % 32),
          warp(threadIdx.x / 32 % 4),
          q_base(ptx::WgmmaDescriptor::of(smem + Shared::kQ + group * Shared::kQBytes, 16)),
          k_base(ptx::WgmmaDescriptor::of(smem + Shared::kK, 16)),
          v_base(ptx::WgmmaDescriptor::of(smem + Shared::kV, Shared::kKVPanelBytes)),
          softmax(params.softmax_scale) {}

    __device__ __forceinline__ void run() {
        if (CFG.pingpong && group == CFG.consumers - 1) ptx::barrier_arrive(1, 256);
        ConsumerTiles<CFG> tiles{{p}, smem};
        Tile tile = tiles.first();
        begin(tile, true);
        scores_are_there();
        int unreleased = -1;  // a Q buffer from which O may still be on its way
        bool more;
        do {
            first_softmax(tile);
            if (unreleased >= 0) release_q(unreleased);
            const int accumulate = remaining_steps(tile);
            const Tile next = tiles.next(tile);
            more = tiles.valid(next);
            if constexpr (kEarlyRescale) {
                if (accumulate) rescale();
            }
            const int slot = q_slot();
            q_ring.advance();
            wait_v();
            if constexpr (CFG.carry) {
                take_turn();
                multiply_pv(accumulate);
                begin(next, more);
                pass_turn();
                ptx::wgmma_wait_group<1>();
            } else {
                multiply_pv(accumulate);
                ptx::wgmma_wait_group<0>();
            }
            keep_registers(o);
            release_v();
            finish(tile, slot);
            if constexpr (CFG.q_stages == 1) {
                release_q(slot);
            } else {
                unreleased = slot;
            }
            if constexpr (!CFG.carry) begin(next, more);
            scores_are_there();
            tile = next;
        } while (more);
        if (warp == 0 && ptx::elect_one()) ptx::bulk_wait_group_read();
    }

    // The tile's first scores.  Without a tile those of whatever is in shared memory, for a branch
    // around wgmma would make the compiler wait for each of them.
    __device__ __forceinline__ void begin(const Tile& tile, bool valid) {
        block = key_blocks<CFG, TRAITS>(p, tile) - 1;
        if (valid) {
            ptx::mbarrier_wait(smem + Shared::kQFull + 8 * q_slot(), q_ring.parity);
            wait_k();
        }
        multiply_qk();
    }

    __device__ __forceinline__ void scores_are_there() {
        ptx::wgmma_wait_group<0>();
        keep_registers(s);
        release_k();
    }

    __device__ __forceinline__ void first_softmax(const Tile& tile) {
        if constexpr (TRAITS.causal || TRAITS.ragged) mask(block, first_row(tile));
        softmax.template update<true, TRAITS.causal>(s, a, [](int, float) {});
        a[0] = a[1] = 1.f;
        pack();
    }

    // All blocks but the first; returns whether there was one, that is, whether O has begun.
    __device__ __forceinline__ int remaining_steps(const Tile& tile) {
        int accumulate = 0;
        if constexpr (TRAITS.causal) {
            // Blocks below this one are seen whole by all rows of the warpgroup.
            const int unmasked = max(0, first_row(tile) + p.diagonal + 1) / CFG.B_c;
#pragma unroll 1
            for (; block > unmasked; --block) {
                step<true>(block - 1, first_row(tile), accumulate);
                accumulate = 1;
            }
        }
#pragma unroll 1
        for (; block > 0; --block) {
            step<false>(block - 1, 0, accumulate);
            accumulate = 1;
        }
        return accumulate;
    }

    __device__ __forceinline__ int first_row(const Tile& tile) const {
        return tile.row_block * CFG.B_r + 64 * group;
    }

    // Warpgroups issue their products in turn, each when the one before it has issued its own.
    __device__ __forceinline__ void take_turn() {
        if constexpr (CFG.pingpong) ptx::barrier_sync(1 + group, 256);
    }

    __device__ __forceinline__ void pass_turn() {
        if constexpr (CFG.pingpong) {
            ptx::barrier_arrive(1 + (group + 1 == CFG.consumers ? 0 : group + 1), 256);
        }
    }

    // Scores and softmax of `block`, and the product of the block before it (the next higher).
    template <bool kMasked>
    __device__ __forceinline__ void step(int block, int first_row, int accumulate) {
        if constexpr (CFG.overlap) {
            wait_k();
            take_turn();
            multiply_qk();
            if constexpr (kEarlyRescale) rescale();
            if constexpr (CFG.pingpong == 2) pass_turn();
            wait_v();
            multiply_pv(accumulate);
            if constexpr (CFG.pingpong != 2) pass_turn();
            ptx::wgmma_wait_group<1>();
            keep_registers(s);
            release_k();
            if constexpr (kMasked) mask(block, first_row);
            softmax.template update<false, kMasked>(s, a, [this](int row, float sum) {
                if (CFG.pin == 1 || (CFG.pin == 2 && row == 0)) {
                    ptx::pin_before_here(sum, smem + Shared::kScratch);
                }
                if (CFG.pin == 2 && row == 0) ptx::wgmma_wait_group<0>();
            });
            ptx::wgmma_wait_group<0>();
            keep_registers(o);
            release_v();
            pack();
            if constexpr (!kEarlyRescale) rescale();
        } else {
            wait_v();
            multiply_pv(accumulate);
            wait_k();
            take_turn();
            multiply_qk();
            pass_turn();
            ptx::wgmma_wait_group<0>();
            keep_registers(o);
            keep_registers(s);
            release_v();
            release_k();
            if constexpr (kMasked) mask(block, first_row);
            softmax.template update<false, kMasked>(s, a, [](int, float) {});
            pack();
            rescale();
        }
    }

    __device__ __forceinline__ void mask(int block, int first_row) {
        mask_scores<TRAITS.causal>(s, first_row + 16 * warp + lane / 4,
                                   block * CFG.B_c + 2 * (lane % 4), p.seq_len_kv, p.diagonal);
    }

    // S = Q K^T of the current stages.
    __device__ __forceinline__ void multiply_qk() {
        const auto q = q_base.advance(q_ring.stage * CFG.consumers * Shared::kQBytes).uniform();
        const auto k = k_base.advance(k_ring.stage * Shared::kKVBytes).uniform();
        keep_registers(s);
        ptx::wgmma_fence();
#pragma unroll
        for (int t = 0; t < CFG.d_head / 16; ++t) {
            const int panel = t / 4, inside = t % 4 * 32;
            ProductQK::ss(s, q.advance(panel * Shared::kQPanelBytes + inside).bits(),
                          k.advance(panel * Shared::kKVPanelBytes + inside).bits(), t > 0);
        }
        ptx::wgmma_commit_group();
    }

    // O += P V of the current stage; without `accumulate`, O = P V.
    __device__ __forceinline__ void multiply_pv(int accumulate) {
        const auto v = v_base.advance(v_ring.stage * Shared::kKVBytes).uniform();
        keep_registers(o);
        ptx::wgmma_fence();
#pragma unroll
        for (int t = 0; t < kStepsPV; ++t) {
            ProductPV::rs(o, probabilities[t], v.advance(16 * t * ptx::kSwizzleBytes).bits(),
                          t > 0 ? 1 : accumulate);
        }
        ptx::wgmma_commit_group();
    }

    // P in the layout of a register operand: the scores, rounded and packed in order.
    __device__ __forceinline__ void pack() {
#pragma unroll
        for (int i = 0; i < kScores / 2; ++i) {
            probabilities[i / 4][i % 4] = round(s[2 * i], s[2 * i + 1]);
        }
#pragma unroll
        for (int i = 0; i < kScores / 2; ++i) ptx::keep_register(probabilities[i / 4][i % 4]);
    }

    __device__ __forceinline__ static unsigned round(float lower, float upper) {
        return kBf16 ? ptx::cvt_rn_bf16x2_f32(lower, upper) : ptx::cvt_rn_f16x2_f32(lower, upper);
    }

    __device__ __forceinline__ void rescale() {
        if constexpr (kLazyRescale) {
            if (!__any_sync(0xffffffffu, a[0] != 1.f || a[1] != 1.f)) return;
        }
#pragma unroll
        for (int j = 0; j < kOutputs; ++j) o[j] *= a[j / 2 % 2];
    }

    // O leaves through this warpgroup's own rows of Q.
    __device__ __forceinline__ void finish(const Tile& tile, int slot) {
        const int batch = tile.head / p.heads;
        const int head = tile.head - batch * p.heads;
        float inverse[2], log_sum_exp[2];
        softmax.finish(inverse, log_sum_exp);
        const unsigned tile_smem = smem + Shared::kQ + slot * Shared::kQBytes;
        // Lane l gives the address of row l % 16, 16-byte chunk l / 16 of each pair.
        const unsigned row = 16 * warp + lane % 16;
        ptx::barrier_sync(5 + group, 128);  // all four warps are past their reads of Q
#pragma unroll
        for (int t = 0; t < CFG.d_head / 16; ++t) {
            unsigned r[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                r[i] = round(o[8 * t + 2 * i] * inverse[i % 2], o[8 * t + 2 * i + 1] * inverse[i % 2]);
            }
            const unsigned chunk = 2 * (t % 4) + lane / 16;
            ptx::stmatrix_x4(tile_smem + t / 4 * Shared::kQPanelBytes + row * ptx::kSwizzleBytes +
                                 ((chunk ^ row % 8) << 4),
                             r);
        }
        ptx::fence_proxy_async_shared();
        ptx::barrier_sync(5 + group, 128);
        if (warp == 0 && ptx::elect_one()) {
#pragma unroll
            for (int panel = 0; panel < Shared::kPanels; ++panel) {
                ptx::tma_store_4d(o_map, tile_smem + panel * Shared::kQPanelBytes, 64 * panel,
                                  first_row(tile), head, batch);
            }
            ptx::bulk_commit_group();
        }
        if constexpr (TRAITS.lse) {
            const int query = first_row(tile) + 16 * warp + lane / 4;
            float* lse = p.lse + static_cast<long long>(tile.head) * p.seq_len_q + query;
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                if (lane % 4 == 0 && query + 8 * i < p.seq_len_q) lse[8 * i] = log_sum_exp[i];
            }
        }
    }

    __device__ __forceinline__ int q_slot() const {
        return q_ring.stage * CFG.consumers + group;
    }

    // Once O has been read from there, the producer may fill the buffer again.
    __device__ __forceinline__ void release_q(int slot) {
        if (warp == 0 && ptx::elect_one()) {
            ptx::bulk_wait_group_read();
            ptx::mbarrier_arrive(smem + Shared::kQEmpty + 8 * slot);
        }
    }

    __device__ __forceinline__ void wait_k() {
        ptx::mbarrier_wait(smem + Shared::kKFull + 8 * k_ring.stage, k_ring.parity);
    }

    __device__ __forceinline__ void wait_v() {
        ptx::mbarrier_wait(smem + Shared::kVFull + 8 * v_ring.stage, v_ring.parity);
    }

    __device__ __forceinline__ void release_k() { release(Shared::kKEmpty, k_ring); }
    __device__ __forceinline__ void release_v() { release(Shared::kVEmpty, v_ring); }

    // Every warp arrives for itself: it has waited for its own wgmma.
    __device__ __forceinline__ void release(int barriers, RingPosition<CFG.stages>& ring) {
        if (lane == 0) ptx::mbarrier_arrive(smem + barriers + 8 * ring.stage);
        ring.advance();
    }

    template <int kCount>
    __device__ __forceinline__ static void keep_registers(float (&values)[kCount]) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) ptx::keep_register(values[i]);
    }
};
