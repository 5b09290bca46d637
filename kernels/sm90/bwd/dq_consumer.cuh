// A consumer warpgroup of the kernel for dQ: 64 queries of a tile, against all keys that they see,
// dq_keys a step.
//
//     S = Q K^T   P = exp2(scale S - LSE)   dP = dO V^T   dS = P (dP - D)   dQ += dS K
//
// A row is a query.  dQ of a step comes with the next step's scores:
//
//     issue S(i + 1), dP(i + 1), dQ(i)
//     wait for S        P(i + 1)                      (under dP and dQ)
//     wait for dP       give V back, dS(i + 1)        (under dQ)
//     wait for dQ       give K(i) back
//
// Above d_head 128, where shared memory has two stages of K, dQ(i) is the first of the three.
//
// It also finds the statistics of its queries, under the first products, and stores them for the
// kernel that follows.
#pragma once

#include "common/backward/query_rows.cuh"
#include "common/backward/row_products.cuh"
#include "common/backward/score_changes.cuh"
#include "common/constants.cuh"
#include "compiler.cuh"
#include "ptx/bar.cuh"
#include "ptx/elect.cuh"
#include "ptx/ex2.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/store_never.cuh"
#include "ptx/tid.cuh"
#include "sm90/bwd/dq_producer.cuh"
#include "sm90/bwd/gradients.cuh"
#include "sm90/bwd/named_barriers.cuh"
#include "sm90/bwd/products.cuh"

namespace fa_tune::sm90::backward {

template <Sm90BackwardConfig CFG, WorkloadTraits TRAITS>
struct DqConsumer {
    using Layout = DqSharedMemory<CFG>;
    using QTile = typename Layout::QTile;
    static constexpr bool kBf16 = CFG.dtype == DType::BF16;
    static constexpr int kScores = CFG.dq_keys / 2;  // of a thread
    static constexpr int kGradients = CFG.padded_d() / 2;
    static constexpr int kSteps = CFG.dq_keys / 16;  // along k of dQ
    static constexpr bool kDqFirst = Layout::kKStages == 2;
    static constexpr int kThreads = 128;
    using Tile = WorkTile<TRAITS.packed>;
    using Sum = ClusterSum<CFG.dq_cluster, 2 * QTile::kPanels, kGradients>;

    const BackwardParams& p;
    const ptx::TensorMap& dq_map;
    const DqSharedAddress<CFG> smem;
    const int warpgroup, warp, lane;
    const float scale_log2;
    [[no_unique_address]] Sequence<TRAITS.packed> sequence;  // of the tile
    int first_row;                                           // of this warpgroup, in its tile
    float lse2[2], delta[2];                                 // of a thread's rows
    float slope;                                             // alibi
    HookedHead of_head;                                      // hook
    float dq[kGradients];
    float s[kScores], dp[kScores];  // of S and P; of dP and dS
    unsigned ds_operand[kSteps][4];

    __device__ __forceinline__ DqConsumer(const BackwardParams& params,
                                          const ptx::TensorMap& dq_map,
                                          const DqSharedAddress<CFG>& smem, int warpgroup)
        : p(params),
          dq_map(dq_map),
          smem(smem),
          warpgroup(warpgroup),
          warp(threadIdx.x / 32 % 4),
          lane(threadIdx.x % 32),
          scale_log2(params.softmax_scale * kLog2E) {}

    __device__ __forceinline__ void run(const Tile& first) {
        if constexpr (!CFG.dynamic) {
            run_tile(first, 0, 0);
        } else {
            ConsumerTiles<true, TRAITS.packed> tiles{smem.tiles()};
            int done = 0;
            unsigned q_parity = 0;
            Tile tile = first;
#pragma unroll 1
            while (tile.number >= 0) {
                // A CTA's first one may be.
                const int steps = tile.is_empty() ? 0 : run_tile(tile, done, q_parity);
                done += steps;
                q_parity ^= steps > 0;
                tile = tiles.next();
            }
        }
        // Shared memory must outlast the copies that read it.
        if (warp == 0 && ptx::elect_sync()) ptx::cp_async_bulk_wait_group_read();
    }

    // `done`: steps of the CTA before the tile.  Returns how many it has.
    __device__ __forceinline__ int run_tile(const Tile& tile, int done, unsigned q_parity) {
        const int row = tile.block * kDqRows;
        sequence = tile.sequence;
        const Range blocks =
            share_of_cta<CFG.dq_cluster>(keys_of_queries<TRAITS>(p, sequence, {row, row + kDqRows})
                                             .template blocks<CFG.dq_keys>());
        first_row = row + 64 * warpgroup;
        if constexpr (TRAITS.alibi) {
            slope = slope_to_base_2(p, slope_index(p, sequence.element(tile.batch), tile.head));
        }
        if constexpr (TRAITS.hook) of_head = {sequence.element(tile.batch), tile.head};
#pragma unroll
        for (int i = 0; i < kGradients; ++i) dq[i] = 0.f;
        if (blocks.count() > 0) {
            accumulate(tile, blocks, done, q_parity);
        } else {
            find_statistics(tile);
        }
        store(tile);
        return blocks.count();
    }

  private:
    // dQ of a tile of one step or more.
    __device__ __forceinline__ void accumulate(const Tile& tile, const Range& blocks, int done,
                                               unsigned q_parity) {
        static_assert(Layout::kVStages == 2, "a stage of V is a bit of a step's number");
        const int first = done & 1;
        int k_stage = done % Layout::kKStages;
        unsigned k_parity = done / Layout::kKStages & 1;
        ptx::mbarrier_wait(smem.q_full(warpgroup), q_parity);
        ptx::mbarrier_wait(smem.k_full(k_stage), k_parity);
        multiply_s(k_stage);
        ptx::mbarrier_wait(smem.do_full(warpgroup), q_parity);
        ptx::mbarrier_wait(smem.v_full(first), done >> 1 & 1);
        multiply_dp(first);
        find_statistics(tile);
        ptx::wgmma_wait_group<1>();
        keep_registers(s);
        weigh(blocks.first);
        ptx::wgmma_wait_group<0>();
        keep_registers(dp);
        arrive(smem.v_empty(first));
        make_ds(blocks.first);
        pack_ds();
#pragma unroll 1
        for (int block = blocks.first + 1; block < blocks.end; ++block) {
            const int n = done + block - blocks.first;
            const int v_stage = n & 1, stage = k_stage;
            k_stage = k_stage == Layout::kKStages - 1 ? 0 : k_stage + 1;
            k_parity ^= k_stage == 0;
            if constexpr (kDqFirst) multiply_dq(stage);
            ptx::mbarrier_wait(smem.k_full(k_stage), k_parity);
            multiply_s(k_stage);
            ptx::mbarrier_wait(smem.v_full(v_stage), n >> 1 & 1);
            multiply_dp(v_stage);
            if constexpr (kDqFirst) {
                wait_for_dq<2>(stage);
                ptx::wgmma_wait_group<1>();
                keep_registers(s);
                weigh(block);
                ptx::wgmma_wait_group<0>();
                keep_registers(dp);
                arrive(smem.v_empty(v_stage));
                make_ds(block);
            } else {
                multiply_dq(stage);
                ptx::wgmma_wait_group<2>();
                keep_registers(s);
                weigh(block);
                compute_before_here(s);
                ptx::wgmma_wait_group<1>();
                keep_registers(dp);
                arrive(smem.v_empty(v_stage));
                make_ds(block);
                compute_before_here(dp);
                wait_for_dq<0>(stage);
            }
            pack_ds();
        }
        multiply_dq(k_stage);
        if constexpr (CFG.dynamic) {
            arrive(smem.q_empty(warpgroup));
            arrive(smem.do_empty(warpgroup));
        }
        ptx::wgmma_wait_group<0>();
        keep_registers(dq);
        if constexpr (CFG.dynamic) arrive(smem.k_empty(k_stage));
    }

    template <int kPending>
    __device__ __forceinline__ void wait_for_dq(int k_stage) {
        ptx::wgmma_wait_group<kPending>();
        keep_registers(dq);
        arrive(smem.k_empty(k_stage));
    }

    // Every warp arrives for itself: it has waited for its own products.
    __device__ __forceinline__ void arrive(unsigned barrier) const {
        __syncwarp();
        if (lane == 0) ptx::mbarrier_arrive(barrier);
    }

    // Without this the assembler puts these after the wait that follows.
    __device__ __forceinline__ void compute_before_here(const float (&x)[kScores]) const {
#pragma unroll
        for (int j = 0; j < kScores / 16 * 16; j += 16) {
            ptx::compute_16_before_here(x + j, p.seq_len_q, smem.base);
        }
    }

    // --- products, each a group that the caller waits for ------------------------------------

    // S = Q K^T, dP = dO V^T and dQ += dS K, of this warpgroup's rows and a stage of K or V.
    __device__ __forceinline__ void multiply_s(int stage) {
        multiply_scores<QTile, typename Layout::KTile, kBf16>(s, smem.q(warpgroup), smem.k(stage));
    }
    __device__ __forceinline__ void multiply_dp(int stage) {
        multiply_scores<typename Layout::DoTile, typename Layout::VTile, kBf16>(
            dp, smem.d_o(warpgroup), smem.v(stage));
    }
    __device__ __forceinline__ void multiply_dq(int stage) {
        multiply_operand<typename Layout::KTile, kBf16>(dq, ds_operand, smem.k(stage));
    }

    // --- elements ----------------------------------------------------------------------------

    __device__ __forceinline__ bool is_masked(int block) const {
        const int key = block * CFG.dq_keys;
        const Range rows{first_row, min(first_row + 64, sequence.queries(p))};
        // Whole blocks of B_c keys may be parts of those of dq_keys.
        constexpr bool kPartKeys = TRAITS.ragged || CFG.B_c % CFG.dq_keys != 0;
        return needs_mask<TRAITS, kPartKeys>(p, sequence, rows, {key, key + CFG.dq_keys});
    }
    // By what it reads anew of the thread, so that nothing of it takes up registers elsewhere.
    __device__ __forceinline__ void hide(float (&x)[kScores], int block) const {
        const int thread = ptx::tid_x(), lane = thread % 32;
        const int row = first_row + 16 * (thread / 32 % 4) + lane / 4;
        const Range rows[2] = {keys_of_query<TRAITS>(p, sequence, row),
                               keys_of_query<TRAITS>(p, sequence, row + 8)};
        hide_outside(x, rows, block * CFG.dq_keys + 2 * (lane % 4));
    }

    // With a soft cap or a hook, times its slope.
    __device__ __forceinline__ void weigh(int block) {
        float bias = 0.f;
        const int row = first_row + 16 * warp + lane / 4;
        const int key = block * CFG.dq_keys + 2 * (lane % 4);
        if constexpr (TRAITS.alibi) {
            bias = slope * static_cast<float>(row + sequence.alibi_diagonal(p) - key);
        }
#pragma unroll
        for (int j = 0; j < kScores; ++j) {
            float of_score = 1.f;
            if constexpr (TRAITS.softcap) s[j] = logistic_of_product(s[j], p.score.score_scale);
            if constexpr (TRAITS.hook) {
                of_score = hook_product(s[j], p.score.score_scale, of_head, row + j / 2 % 2 * 8,
                                        key + j / 4 * 8 + j % 2);
            }
            float x = s[j] * scale_log2 - lse2[j / 2 % 2];
            if constexpr (TRAITS.alibi) {
                x -= alibi_at(slope, bias, j / 2 % 2 * 8 - j / 4 * 8 - j % 2);
            }
            const float weight = ptx::ex2_approx(x);
            if constexpr (TRAITS.softcap) of_score = softcap_slope(s[j]);
            s[j] = has_slopes<TRAITS>() ? with_slope<TRAITS>(weight, of_score) : weight;
        }
        if (is_masked(block)) hide(s, block);
    }

    __device__ __forceinline__ void make_ds(int block) {
#pragma unroll
        for (int j = 0; j < kScores; ++j) dp[j] = s[j] * (dp[j] - delta[j / 2 % 2]);
        if (is_masked(block)) hide(dp, block);
        keep_registers(dp);
    }

    __device__ __forceinline__ void pack_ds() { pack<CFG.dtype>(ds_operand, dp); }

    // LSE to base 2 and D of a thread's rows, also to the workspace.  The four lanes of a row read
    // a quarter each; their first one stores.
    __device__ __forceinline__ void find_statistics(const Tile& tile) {
        constexpr int kChunks = (CFG.padded_d_v() + 31) / 32;
        constexpr int kAtOnce = kChunks > 4 ? kChunks / 2 : kChunks;  // as registers are left for
        const QueryRows<TRAITS.packed> rows{p, sequence, tile.batch, tile.head};
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int row = first_row + 16 * warp + lane / 4 + 8 * i;
            lse2[i] = infinity();
            float sum = 0;
#pragma unroll 1
            for (int first = 0; first < kChunks; first += kAtOnce) {
                uint4 o[kAtOnce], d_o[kAtOnce];
#pragma unroll
                for (int j = 0; j < kAtOnce; ++j) o[j] = d_o[j] = {};
                if (row < sequence.queries(p)) {
                    const uint4* const of_o = rows.of(p.o, p.o_strides, row);
                    const uint4* const of_do = rows.of(p.d_o, p.do_strides, row);
#pragma unroll
                    for (int j = 0; j < kAtOnce; ++j) {
                        const int chunk = lane % 4 + 4 * (first + j);
                        if (CFG.d_v() != 32 * kChunks && 8 * chunk >= CFG.d_v()) continue;
                        o[j] = of_o[chunk];
                        d_o[j] = of_do[chunk];
                    }
                    lse2[i] = to_base_2<TRAITS>(p, rows.of_lse(p.lse, row));
                }
#pragma unroll
                for (int j = 0; j < kAtOnce; ++j) {
                    sum += product_of_chunks<CFG.dtype>(o[j], d_o[j]);
                }
            }
            delta[i] = quad_sum(sum);
            if (TRAITS.lse && row < sequence.queries(p)) {
                delta[i] -= rows.of_lse(p.grad_lse, row);
            }
            if (lane % 4 == 0) {
                p.lse2[rows.padded(row)] = lse2[i];
                p.delta[rows.padded(row)] = delta[i];
            }
        }
    }

    // --- the way out ---------------------------------------------------------------------------

    __device__ __forceinline__ void store(const Tile& tile) {
        const int own = static_cast<int>(NamedBarrier::GRADIENTS) + warpgroup;
        if constexpr (CFG.dynamic) {
            // That of the tile before has left its place.
            if (warp == 0 && ptx::elect_sync()) ptx::cp_async_bulk_wait_group_read();
        }
        const Sum sum{smem.base, QTile::kPanels * warpgroup};
        if constexpr (CFG.dq_cluster > 1) {
            static_assert(Sum::kBytes <= 2 * (QTile::kBytes + Layout::DoTile::kBytes) +
                                             Layout::kKStages * Layout::KTile::kBytes +
                                             Layout::kVStages * Layout::VTile::kBytes,
                          "sums of a cluster need more room than Q, dO, K and V have");
            // Both warpgroups are done with what was in the sums' place.
            ptx::bar_sync(static_cast<int>(NamedBarrier::CONSUMERS), 2 * kThreads);
            sum.hand_over(dq);
            meet_cluster();
            sum.add_up(dq);
            ptx::fence_proxy_async_shared();
            meet_cluster();
        }
        // Otherwise all warps are done with Q, which was in its place.
        ptx::bar_sync(own, kThreads);
        stage_gradient<QTile, CFG.dtype>(dq, gradient_scale<TRAITS>(p), smem.dq(warpgroup), warp,
                                         lane);
        ptx::fence_proxy_async_shared();
        ptx::bar_sync(own, kThreads);
        if (warp == 0 && ptx::elect_sync()) {
            send_gradient<QTile, TRAITS.packed>(dq_map, smem.dq(warpgroup), tile.head,
                                                sequence.template q_box<64>(first_row, tile.batch),
                                                sum);
            ptx::cp_async_bulk_commit_group();
        }
    }
};

}  // namespace fa_tune::sm90::backward
