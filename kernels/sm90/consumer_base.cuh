// What the consumer warpgroups have in common: S, P and O of their m_tiles times 64 query rows in
// registers, their products, their barriers, and the way out for O.
//
//              keys (B_c)                      d_head
//            +---------+                     +---------+
//     rows   | S, P    |  = Q K^T     rows   | O       |  += P V
//            +---------+                     +---------+
//
// Q comes from shared memory or, with q_registers, from registers.
#pragma once

#include "ptx/cluster.cuh"
#include "ptx/elect.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/mbarrier_probe.cuh"
#include "ptx/named_barrier.cuh"
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
struct ConsumerBase {
    using Shared = SharedMemory<CFG>;
    static constexpr bool kBf16 = CFG.dtype == DType::BF16;
    static constexpr int kTiles = CFG.m_tiles;
    static constexpr int kRows = 64 * kTiles;
    static constexpr int kScores = CFG.B_c / 2;  // of a thread, in a tile
    static constexpr int kOutputs = CFG.d_head / 2;
    static constexpr int kStepsQK = CFG.d_head / 16;
    static constexpr int kStepsPV = CFG.B_c / 16;
    static constexpr bool kEarlyRescale = CFG.rescale == Rescale::BEFORE_PRODUCT;
    static constexpr bool kTrust = CFG.rescale == Rescale::TRUST;
    static constexpr bool kLazyRescale = CFG.rescale == Rescale::LAZY || kTrust;
    // Whether the first rows of a tile see nothing of the last rows' last block.
    static constexpr bool kSkipsHidden = TRAITS.causal && CFG.B_r * CFG.cluster - kRows >= CFG.B_c;
    using ProductQK = ptx::WgmmaM64K16<CFG.B_c, kBf16>;
    using ProductPV = ptx::WgmmaM64K16<CFG.d_head, kBf16>;

    const ForwardParams& p;
    const ptx::TensorMap& o_map;
    const unsigned smem;
    const int group;  // this warpgroup among the consumers
    const int lane, warp;
    const ptx::WgmmaDescriptor q_base, k_base, v_base;  // of stage 0
    RingPosition<CFG.q_stages> q_ring;
    RingPosition<CFG.stages> k_ring;
    RingPosition<Shared::kVStages> v_ring;
    // Of each tile of 64 rows:
    Softmax<CFG, kScores, TRAITS.causal> softmax[kTiles];
    float o[kTiles][kOutputs];
    unsigned q[kTiles][CFG.q_registers ? kStepsQK : 1][4];
    unsigned probabilities[kTiles][kStepsPV][4];
    float a[kTiles][2];
    unsigned k_seen = 0, v_seen = 0;  // early_look: whether the next blocks had arrived
    int block;                        // the key block whose scores come next, or last came

    __device__ __forceinline__ ConsumerBase(const ForwardParams& params,
                                            const ptx::TensorMap& o_map, unsigned smem, int group)
        : p(params),
          o_map(o_map),
          smem(smem),
          group(group),
          lane(threadIdx.x % 32),
          warp(threadIdx.x / 32 % 4),
          q_base(ptx::WgmmaDescriptor::of(smem + Shared::kQ + group * Shared::kQBytes, 16)),
          k_base(ptx::WgmmaDescriptor::of(smem + Shared::kK, 16)),
          v_base(ptx::WgmmaDescriptor::of(smem + Shared::kV, Shared::kKVPanelBytes)) {
#pragma unroll
        for (int m = 0; m < kTiles; ++m) softmax[m].set_scale(params.softmax_scale);
    }

    __device__ __forceinline__ int first_row(const Tile& tile) const {
        return tile.row_block * CFG.B_r + kRows * group;
    }

    // Key blocks below this one are seen whole by all rows of the warpgroup.
    __device__ __forceinline__ int unmasked_blocks(const Tile& tile) const {
        return max(0, first_row(tile) + p.diagonal + 1) / CFG.B_c;
    }

    // The last block of which a row of the warpgroup sees a key; if none sees any, the first.
    __device__ __forceinline__ int last_block(const Tile& tile) const {
        return max(0, first_row(tile) + kRows - 1 + p.diagonal) / CFG.B_c;
    }

    __device__ __forceinline__ void wait_q() {
        ptx::mbarrier_wait(smem + Shared::kQFull + 8 * q_slot(), q_ring.parity);
    }

    __device__ __forceinline__ unsigned q_tile(int slot, int m) const {
        return smem + Shared::kQ + slot * Shared::kQBytes + m * Shared::kQTileBytes;
    }

    // This warp's 16 rows of each tile of Q, fragment by fragment.
    __device__ __forceinline__ void load_q_registers() {
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
            const unsigned tile_smem = q_tile(q_slot(), m);
#pragma unroll
            for (int t = 0; t < kStepsQK; ++t)
                ptx::ldmatrix_x4(q[m][t], chunk_address(tile_smem, t));
#pragma unroll
            for (int t = 0; t < kStepsQK; ++t) keep_registers(q[m][t]);
        }
    }

    // Of the 16x16 fragment t in this warp's rows of a tile in the layout of Q: lane l has the
    // address of row l % 16, columns 8 (l / 16) to + 7.
    __device__ __forceinline__ unsigned chunk_address(unsigned tile_smem, int t) const {
        const unsigned row = 16 * warp + lane % 16;
        const unsigned chunk = 2 * (t % 4) + lane / 16;
        return tile_smem + t / 4 * Shared::kQPanelBytes + row * ptx::kSwizzleBytes +
               ((chunk ^ row % 8) << 4);
    }

    // `first_row`, `first_column`: query and key index of the warpgroup's score (0, 0).
    template <int kCount>
    __device__ __forceinline__ void mask(float (&s)[kScores], int first_row, int first_column) {
        mask_scores<TRAITS.causal, kCount>(s, first_row + 16 * warp + lane / 4,
                                           first_column + 2 * (lane % 4), p.seq_len_kv, p.diagonal);
    }

    // With one tile alone the compiler keeps everything uniform by itself.
    __device__ __forceinline__ static ptx::WgmmaDescriptor uniform(
        const ptx::WgmmaDescriptor& descriptor) {
        return CFG.scheduler == Scheduler::SINGLE ? descriptor : descriptor.uniform();
    }

    // The operands in the current stages.
    __device__ __forceinline__ ptx::WgmmaDescriptor q_operand() const {
        return uniform(q_base.advance(q_ring.stage * CFG.consumers * Shared::kQBytes));
    }
    __device__ __forceinline__ ptx::WgmmaDescriptor k_operand() const {
        return uniform(k_base.advance(k_ring.stage * Shared::kKVBytes));
    }
    __device__ __forceinline__ ptx::WgmmaDescriptor v_operand() const {
        return uniform(v_base.advance(v_ring.stage * Shared::kKVBytes));
    }

    // S = Q K^T of the current stages; a group for each tile.
    __device__ __forceinline__ void multiply_qk(float (&s)[kTiles][kScores]) {
        const auto q_tiles = q_operand();
        const auto k = k_operand();
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
            keep_registers(s[m]);
            ptx::wgmma_fence();
#pragma unroll
            for (int panel = 0; panel < Shared::kPanels; ++panel) {
                const auto b = k.advance(panel * Shared::kKVPanelBytes).bits();
                if constexpr (CFG.q_registers) {
                    ProductQK::template rs4<false>(s[m], q[m] + 4 * panel, b, panel > 0);
                } else {
                    const int at = m * Shared::kQTileBytes + panel * Shared::kQPanelBytes;
                    ProductQK::ss4(s[m], q_tiles.advance(at).bits(), b, panel > 0);
                }
            }
            ptx::wgmma_commit_group();
        }
    }

    // O += P V of the current stage; without `accumulate`, O = P V.  A group for each tile.
    __device__ __forceinline__ void multiply_pv(int accumulate) {
        const auto v = v_operand();
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
            keep_registers(o[m]);
            ptx::wgmma_fence();
#pragma unroll
            for (int t = 0; t < kStepsPV; t += t + 4 <= kStepsPV ? 4 : 1) {
                const auto b = v.advance(16 * t * ptx::kSwizzleBytes).bits();
                if (t + 4 <= kStepsPV) {
                    ProductPV::template rs4<true>(o[m], probabilities[m] + t, b,
                                                  t > 0 ? 1 : accumulate);
                } else {
                    ProductPV::template rs<true>(o[m], probabilities[m][t], b,
                                                 t > 0 ? 1 : accumulate);
                }
            }
            ptx::wgmma_commit_group();
        }
    }

    // P of a tile in the layout of a register operand: the scores, rounded and packed in order.
    __device__ __forceinline__ void pack(const float (&s)[kTiles][kScores], int m) {
#pragma unroll
        for (int i = 0; i < kScores / 2; ++i) {
            probabilities[m][i / 4][i % 4] = softmax[m].round(s[m][2 * i], s[m][2 * i + 1]);
        }
        keep_probabilities(m);
    }

    __device__ __forceinline__ void keep_probabilities(int m) {
#pragma unroll
        for (int i = 0; i < kScores / 2; ++i) ptx::keep_register(probabilities[m][i / 4][i % 4]);
    }

    // P of a tile by the maxima that are there; where these turn out to be outgrown, by new ones.
    // Nothing of the tile is under way, so that its scores can be taken twice.
    __device__ __forceinline__ void trust(const float (&s)[kTiles][kScores], int m) {
        float sums[2];
#pragma unroll 1
        while (true) {
            softmax[m].trust(s[m], probabilities[m], sums);
            if (!softmax[m].outgrown(sums)) break;
            softmax[m].raise(s[m], a[m]);
            multiply_o(m);
        }
        softmax[m].add(sums);
        keep_probabilities(m);
    }

    __device__ __forceinline__ void rescale(int m) {
        if constexpr (kLazyRescale) {
            if (!__any_sync(0xffffffffu, a[m][0] != 1.f || a[m][1] != 1.f)) return;
        }
        multiply_o(m);
    }

    __device__ __forceinline__ void multiply_o(int m) {
#pragma unroll
        for (int j = 0; j < kOutputs; ++j) o[m][j] *= a[m][j / 2 % 2];
    }

    // O and the log-sum-exp of a tile, whose Q is in `slot`, leave.
    __device__ __forceinline__ void finish(const Tile& tile, int slot) {
        const int query = first_row(tile) + 16 * warp + lane / 4;
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
            float inverse[2], log_sum_exp[2];
            bool empty[2];
            softmax[m].finish(inverse, log_sum_exp, empty);
            if constexpr (TRAITS.causal) {
                // Their P is 0, but 0 times an infinite V is not.
                if (__any_sync(0xffffffffu, empty[0] || empty[1])) {
#pragma unroll
                    for (int j = 0; j < kOutputs; ++j) o[m][j] = empty[j / 2 % 2] ? 0.f : o[m][j];
                }
            }
            // All four warps are past their reads of Q.
            if (m == 0) ptx::named_barrier_sync(5 + group, 128);
            stage_tile(slot, m, inverse);
            if constexpr (TRAITS.lse) {
                const long long row = tile.batch * p.heads + tile.head;
                float* lse = p.lse + row * p.seq_len_q + query + 64 * m;
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    if (lane % 4 == 0 && query + 64 * m + 8 * i < p.seq_len_q) {
                        lse[8 * i] = log_sum_exp[i];
                    }
                }
            }
        }
        send_tiles(tile, slot);
    }

    // Four registers of O's fragment t, rounded: columns 16 t + 2 (lane % 4) and + 1 of row i % 2,
    // 8 columns further on from i = 2.
    __device__ __forceinline__ void output(unsigned (&r)[4], int m, int t,
                                           const float (&inverse)[2]) const {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int j = 8 * t + 2 * i;
            r[i] = softmax[m].round(o[m][j] * inverse[i % 2], o[m][j + 1] * inverse[i % 2]);
        }
    }

    // Through this warpgroup's own rows of Q, from where a bulk copy takes them.
    __device__ __forceinline__ void stage_tile(int slot, int m, const float (&inverse)[2]) const {
#pragma unroll
        for (int t = 0; t < CFG.d_head / 16; ++t) {
            unsigned r[4];
            output(r, m, t, inverse);
            ptx::stmatrix_x4(chunk_address(q_tile(slot, m), t), r);
        }
    }

    __device__ __forceinline__ void send_tiles(const Tile& tile, int slot) const {
        ptx::fence_proxy_async_shared();
        ptx::named_barrier_sync(5 + group, 128);
        if (warp == 0 && ptx::elect_one()) {
#pragma unroll
            for (int m = 0; m < kTiles; ++m) {
#pragma unroll
                for (int panel = 0; panel < Shared::kPanels; ++panel) {
                    ptx::tma_store_4d(o_map, q_tile(slot, m) + panel * Shared::kQPanelBytes,
                                      64 * panel, first_row(tile) + 64 * m, tile.head, tile.batch);
                }
            }
            ptx::bulk_commit_group();
        }
    }

    __device__ __forceinline__ int q_slot() const { return q_ring.stage * CFG.consumers + group; }

    // The producer may fill the buffer again: when O has been read from there.
    __device__ __forceinline__ void release_q(int slot) {
        if (warp == 0 && ptx::elect_one()) {
            ptx::bulk_wait_group_read();
            ptx::mbarrier_arrive(smem + Shared::kQEmpty + 8 * slot);
        }
    }

    __device__ __forceinline__ void wait_k() { wait(k_seen, Shared::kKFull, k_ring); }
    __device__ __forceinline__ void wait_v() { wait(v_seen, Shared::kVFull, v_ring); }

    __device__ __forceinline__ void release_k() {
        release(Shared::kKEmpty, k_ring);
        if constexpr (CFG.early_look) k_seen = look(Shared::kKFull, k_ring);
    }

    __device__ __forceinline__ void release_v() {
        release(Shared::kVEmpty, v_ring);
        if constexpr (CFG.early_look) v_seen = look(Shared::kVFull, v_ring);
    }

    template <int kStages>
    __device__ __forceinline__ void wait(unsigned seen, int barriers,
                                         const RingPosition<kStages>& ring) const {
        const unsigned barrier = smem + barriers + 8 * ring.stage;
        if constexpr (CFG.early_look) {
            ptx::mbarrier_wait_unless(seen, barrier, ring.parity);
        } else {
            ptx::mbarrier_wait(barrier, ring.parity);
        }
    }

    // The answer takes its time; the next wait is a softmax away.
    template <int kStages>
    __device__ __forceinline__ unsigned look(int barriers,
                                             const RingPosition<kStages>& ring) const {
        return ptx::mbarrier_probe(smem + barriers + 8 * ring.stage, ring.parity);
    }

    // Every warp arrives for itself: it has waited for its own wgmma.  A cluster's producers load
    // for all its CTAs, so all of them are told.
    template <int kStages>
    __device__ __forceinline__ void release(int barriers, RingPosition<kStages>& ring) {
        const unsigned barrier = smem + barriers + 8 * ring.stage;
        if constexpr (CFG.cluster == 1) {
            if (lane == 0) ptx::mbarrier_arrive(barrier);
        } else {
            if (lane < CFG.cluster) ptx::mbarrier_arrive_cluster(ptx::in_cta(barrier, lane));
        }
        ring.advance();
    }

    template <class T, int kCount>
    __device__ __forceinline__ static void keep_registers(T (&values)[kCount]) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) ptx::keep_register(values[i]);
    }
};
