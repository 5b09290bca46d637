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
    const unsigned long long q_base, k_base, v_base;  // descriptors of stage 0
    RingPosition<CFG.q_stages> q_ring;
    RingPosition<CFG.stages> k_ring, v_ring;
    Softmax<kScores, kLazyRescale, TRAITS.causal> softmax;
    float s[kScores];
    float o[kOutputs];
    unsigned probabilities[kStepsPV][4];
    float a[2];

    __device__ __forceinline__ Consumer(const ForwardParams& params, const ptx::TensorMap& o_map,
                                        unsigned smem, int group)
        : p(params),
          o_map(o_map),
          smem(smem),
          group(group),
          lane(threadIdx.x % 32),
          warp(threadIdx.x / 32 % 4),
          q_base(ptx::wgmma_descriptor(smem + Shared::kQ + group * Shared::kQBytes, 16)),
          k_base(ptx::wgmma_descriptor(smem + Shared::kK, 16)),
          v_base(ptx::wgmma_descriptor(smem + Shared::kV, Shared::kKVPanelBytes)),
          softmax(params.softmax_scale) {}

    __device__ __forceinline__ void run() {
        if (CFG.pingpong && group == CFG.consumers - 1) ptx::barrier_arrive(1, 256);
        const Scheduler<CFG> scheduler{p};
        for (Tile tile = scheduler.first(); scheduler.valid(tile); tile = scheduler.next(tile)) {
            compute(tile);
            finish(tile);
            q_ring.advance();
        }
        if (warp == 0 && ptx::elect_one()) ptx::bulk_wait_group_read();
    }

    __device__ __forceinline__ void compute(const Tile& tile) {
        const int n_blocks = key_blocks<CFG, TRAITS>(p, tile);
        const int first_row = tile.row_block * CFG.B_r + 64 * group;
        int block = n_blocks - 1;
        ptx::mbarrier_wait(q_barrier(Shared::kQFull), q_ring.parity);
        wait_k();
        multiply_qk();
        ptx::wgmma_wait_group<0>();
        keep_registers(s);
        release_k();
        first_softmax(block, first_row);
        int accumulate = 0;
        if constexpr (TRAITS.causal) {
            // Blocks below this one are seen whole by all rows of the warpgroup.
            const int unmasked = max(0, first_row + p.diagonal + 1) / CFG.B_c;
#pragma unroll 1
            for (; block > unmasked; --block) {
                step<true>(block - 1, first_row, accumulate);
                accumulate = 1;
            }
        }
#pragma unroll 1
        for (; block > 0; --block) {
            step<false>(block - 1, first_row, accumulate);
            accumulate = 1;
        }
        if constexpr (kEarlyRescale) {
            if (accumulate) rescale();
        }
        wait_v();
        multiply_pv(accumulate);
        ptx::wgmma_wait_group<0>();
        keep_registers(o);
        release_v();
    }

    __device__ __forceinline__ void first_softmax(int block, int first_row) {
        if constexpr (TRAITS.causal || TRAITS.ragged) mask(block, first_row);
        softmax.template update<true, TRAITS.causal>(s, a);
        a[0] = a[1] = 1.f;
        pack();
    }

    // Scores and softmax of `block`, and the product of the block before it (the next higher).
    template <bool kMasked>
    __device__ __forceinline__ void step(int block, int first_row, int accumulate) {
        if constexpr (CFG.overlap) {
            wait_k();
            if constexpr (CFG.pingpong) ptx::barrier_sync(1 + group, 256);
            multiply_qk();
            if constexpr (kEarlyRescale) rescale();
            wait_v();
            multiply_pv(accumulate);
            if constexpr (CFG.pingpong) {
                ptx::barrier_arrive(1 + (group + 1) % CFG.consumers, 256);
            }
            ptx::wgmma_wait_group<1>();
            keep_registers(s);
            release_k();
            if constexpr (kMasked) mask(block, first_row);
            softmax.template update<false, kMasked>(s, a);
            if constexpr (CFG.pin) {
                ptx::pin_before_here(fminf(softmax.row_sum[0], softmax.row_sum[1]),
                                     smem + Shared::kScratch);
            }
            ptx::wgmma_wait_group<0>();
            keep_registers(o);
            release_v();
            pack();
            if constexpr (!kEarlyRescale) rescale();
        } else {
            wait_v();
            multiply_pv(accumulate);
            wait_k();
            if constexpr (CFG.pingpong) ptx::barrier_sync(1 + group, 256);
            multiply_qk();
            if constexpr (CFG.pingpong) {
                ptx::barrier_arrive(1 + (group + 1) % CFG.consumers, 256);
            }
            ptx::wgmma_wait_group<0>();
            keep_registers(o);
            keep_registers(s);
            release_v();
            release_k();
            if constexpr (kMasked) mask(block, first_row);
            softmax.template update<false, kMasked>(s, a);
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
        const unsigned long long q =
            ptx::advance(q_base, q_ring.stage * CFG.consumers * Shared::kQBytes);
        const unsigned long long k = ptx::advance(k_base, k_ring.stage * Shared::kKVBytes);
        keep_registers(s);
        ptx::wgmma_fence();
#pragma unroll
        for (int t = 0; t < CFG.d_head / 16; ++t) {
            const int panel = t / 4, inside = t % 4 * 32;
            ProductQK::ss(s, ptx::advance(q, panel * Shared::kQPanelBytes + inside),
                          ptx::advance(k, panel * Shared::kKVPanelBytes + inside), t > 0);
        }
        ptx::wgmma_commit_group();
    }

    // O += P V of the current stage; without `accumulate`, O = P V.
    __device__ __forceinline__ void multiply_pv(int accumulate) {
        const unsigned long long v = ptx::advance(v_base, v_ring.stage * Shared::kKVBytes);
        keep_registers(o);
        ptx::wgmma_fence();
#pragma unroll
        for (int t = 0; t < kStepsPV; ++t) {
            ProductPV::rs(o, probabilities[t], ptx::advance(v, 16 * t * ptx::kSwizzleBytes),
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
    __device__ __forceinline__ void finish(const Tile& tile) {
        const int batch = tile.head / p.heads;
        const int head = tile.head - batch * p.heads;
        const int first_row = tile.row_block * CFG.B_r + 64 * group;
        float inverse[2], log_sum_exp[2];
        softmax.finish(inverse, log_sum_exp);
        const int slot = q_ring.stage * CFG.consumers + group;
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
                                  first_row, head, batch);
            }
            ptx::bulk_commit_group();
            ptx::bulk_wait_group_read();
            ptx::mbarrier_arrive(q_barrier(Shared::kQEmpty));
        }
        if constexpr (TRAITS.lse) {
            const int query = first_row + 16 * warp + lane / 4;
            float* lse = p.lse + static_cast<long long>(tile.head) * p.seq_len_q + query;
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                if (lane % 4 == 0 && query + 8 * i < p.seq_len_q) lse[8 * i] = log_sum_exp[i];
            }
        }
    }

    __device__ __forceinline__ unsigned q_barrier(int barriers) const {
        return smem + barriers + 8 * (q_ring.stage * CFG.consumers + group);
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
