// A consumer warpgroup of the kernel for dK and dV: 64 keys of a tile, against all queries that see
// them, B_r a step, and these of all heads of a group.
//
//     S^T = K Q^T   P = exp2(scale S - LSE)   dP^T = V dO^T   dS = P (dP - D)
//     dV += P^T dO   dK += dS^T Q   dQ = dS K   (the factor of dK and dQ comes at the end)
//
// A row is a key, a column a query, so that P^T and dS^T are A of the next products from where they
// are.  dQ needs dS of all 128 keys, by way of shared memory, and so comes a step late: neither
// warpgroup waits for the other's dS of the same step.
//
//     P(i) is in registers, nothing is under way
//     issue dP(i)       pack P(i)        issue dV(i)
//     wait for dP       dS(i), which others may read                        (under dV)
//     wait for dV, give dO(i) back
//     issue dQ(i - 1), dK(i), S(i + 1)   with `turns` when it is this warpgroup's turn
//     wait for dQ       add it to global memory, give dS(i - 1) back       (under dK and S)
//     wait for S        give Q(i) back, P(i + 1)             (under the other warpgroup's products)
//
// With `same_step` nothing crosses steps, and both warpgroups are at the same place of one:
//
//     issue S, dP    wait for S          P                              (under dP)
//     wait for dP    dS, which others may read
//     issue dV       wait for the other's dS
//     issue dQ       wait for dV         give dO back
//     issue dK       wait for dQ         add it to global memory        (under dK)
//     wait for dK    give Q back
//
// A warpgroup has 64 x 64 of dQ: half of its columns at d_head 128, half of its rows at d_head 64.
// Up to 48 it has fewer columns, at 96 the second one has 32.  A tile of the fp32 sums in global
// memory is as it lies in registers,
//
//     [warpgroup][warp][8, or an eighth of the columns][lane][4]
//
// so that the adds of a warp are of whole lines.
//
// The assembler lets products run beside other code only where it can follow their accumulators:
// what ordinary code reads is issued and waited for in one pass through the loop; dK and dV alone
// cross from one to the next.  Hence first and last steps of their own.
#pragma once

#include "common/backward/query_rows.cuh"
#include "common/constants.cuh"
#include "compiler.cuh"
#include "ptx/bar.cuh"
#include "ptx/barrier_sync.cuh"
#include "ptx/elect.cuh"
#include "ptx/global_words.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/red_v4.cuh"
#include "ptx/shared_pairs.cuh"
#include "ptx/stmatrix_trans.cuh"
#include "sm90/bwd/cluster_share.cuh"
#include "sm90/bwd/gradients.cuh"
#include "sm90/bwd/key_rows.cuh"
#include "sm90/bwd/named_barriers.cuh"
#include "sm90/bwd/products.cuh"
#include "sm90/bwd/scheduler.cuh"
#include "sm90/bwd/shared_memory.cuh"

namespace fa_tune::sm90::backward {

// `kDqColumns`: of the warpgroup.
template <Sm90BackwardConfig CFG, WorkloadTraits TRAITS, int kDqColumns>
struct Consumer : KeyRows<CFG.B_r, TRAITS> {
    using Keys = KeyRows<CFG.B_r, TRAITS>;
    using Keys::first_head, Keys::first_key, Keys::first_slope, Keys::hide, Keys::is_masked;
    using Keys::kScores, Keys::lane, Keys::p, Keys::sequence, Keys::warp;
    using Layout = SharedMemory<CFG>;
    using QTile = typename Layout::QTile;
    using KvTile = typename Layout::KvTile;
    using DsTile = typename Layout::DsTile;
    static constexpr bool kBf16 = CFG.dtype == DType::BF16;
    static constexpr bool kHasDq = !CFG.two_pass;
    // Whether dV is waited for before the next products are issued, which saves registers.
    static constexpr bool kEarlyDv = kHasDq || CFG.padded_d() <= 64;
    // Whether the second warpgroup leaves out a first step of which its keys are not seen.
    static constexpr bool kSkips = TRAITS.causal && CFG.B_r == 64;
    static constexpr bool kMasks = TRAITS.diagonal() || TRAITS.ragged;
    // Whether steps without a mask have code of their own, for which others lack the registers.
    static constexpr bool kSplits = kMasks && kHasDq;
    // Whether a warpgroup has half of the rows of dQ, not of its columns.
    static constexpr bool kByRows = CFG.padded_d() <= 64;
    static constexpr int kGradients = CFG.padded_d() / 2;  // of a thread
    static constexpr int kSteps = CFG.B_r / 16;            // along k of dK and dV
    static constexpr int kThreads = 128, kAllThreads = 2 * kThreads;
    static constexpr int kPanels = KvTile::kPanels;
    using Sum = ClusterSum<CFG.cluster, 4 * kPanels, kGradients>;
    using Tile = WorkTile<TRAITS.packed>;

    struct Step {
        int number;  // of the CTA
        int block;   // of queries
        int head;    // of the group
    };

    const ptx::TensorMap &dk_map, &dv_map;
    const SharedAddress<CFG> smem;
    const int warpgroup;
    int dq_tile;  // whose sums come next
    float dk[kGradients], dv[kGradients];
    // Of S and P; of dP, then dS and then dQ.
    float s[kScores], dp[kScores];
    unsigned p_operand[kSteps][4], ds_operand[kSteps][4];

    __device__ __forceinline__ Consumer(const BackwardParams& params, const ptx::TensorMap& dk_map,
                                        const ptx::TensorMap& dv_map,
                                        const SharedAddress<CFG>& smem, int warpgroup)
        : Keys{params, static_cast<int>(threadIdx.x / 32 % 4), static_cast<int>(threadIdx.x % 32),
               params.softmax_scale * kLog2E},
          dk_map(dk_map),
          dv_map(dv_map),
          smem(smem),
          warpgroup(warpgroup) {}

    __device__ __forceinline__ void run(const Tile& first) {
        if (CFG.turns && warpgroup == 1) pass_turn();
        if constexpr (!CFG.dynamic) {
            run_tile(first, 0, 0);
        } else {
            ConsumerTiles<true, TRAITS.packed> tiles{smem.tiles()};
            int done = 0;
            unsigned kv_parity = 0;
            Tile tile = first;
#pragma unroll 1
            while (tile.number >= 0) {
                // A CTA's first one may be.
                const int steps = tile.is_empty() ? 0 : run_tile(tile, done, kv_parity);
                done += steps;
                kv_parity ^= steps > 0;
                tile = tiles.next();
            }
        }
        // Shared memory must outlast the copies that read it.
        if (warp == 0 && ptx::elect_sync()) ptx::cp_async_bulk_wait_group_read();
    }

    // `done`: steps of the CTA before the tile.  Returns how many it has.
    __device__ __forceinline__ int run_tile(const Tile& tile, int done, unsigned kv_parity) {
        // Into a uniform register, where the addresses of products are made of it.
        if constexpr (CFG.dynamic) done = __reduce_max_sync(kAllLanes, done);
        const int key = tile.block * CFG.B_c;
        sequence = tile.sequence;
        if constexpr (TRAITS.alibi) {
            first_slope = slope_index(p, sequence.element(tile.batch), tile.head * p.heads_per_kv);
        }
        if constexpr (TRAITS.hook) {
            first_head = {sequence.element(tile.batch), tile.head * p.heads_per_kv};
        }
        first_key = key + 64 * warpgroup;
        const Range blocks = query_blocks();
        const StepShare share = share_of_cta<CFG.cluster>(blocks.count() * p.heads_per_kv);
        const int steps = share.count;
#pragma unroll
        for (int i = 0; i < kGradients; ++i) dk[i] = dv[i] = 0.f;
        if (steps > 0) {
            const int passed = share.first / p.heads_per_kv;
            const int first_head = share.first - passed * p.heads_per_kv;
            if constexpr (kHasDq) {
                const QueryRows<TRAITS.packed> rows{p, sequence, tile.batch,
                                                    tile.head * p.heads_per_kv + first_head};
                dq_tile = static_cast<int>(rows.padded(0) / CFG.B_r) + starting_block(p, blocks) +
                          step_direction(p) * passed;
            }
            const Step first{done, starting_block(p, blocks) + step_direction(p) * passed,
                             first_head};
            if constexpr (CFG.same_step) {
                accumulate_in_step(steps, first, kv_parity);
            } else {
                accumulate(steps, first, kv_parity);
            }
            if constexpr (CFG.dynamic) arrive(smem.k_empty());
        }
        store(tile);
        return steps;
    }

  private:
    // dK and dV of a tile of one step or more.
    __device__ __forceinline__ void accumulate(int steps, Step step, unsigned kv_parity) {
        const int last = step.number + steps - 1;
        const bool is_skipped = skips(steps, step.block);
        ptx::mbarrier_wait(smem.k_full(), kv_parity);
        {
            const int n = is_skipped ? step.number + 1 : step.number;
            ptx::mbarrier_wait(smem.q_full(q_stage(n)), q_parity(n));
            multiply_scores(s, k_rows(), smem.q(q_stage(n)));
            ptx::wgmma_wait_group<0>();
            keep_registers(s);
            weigh<kMasks>(q_stage(n), {n, is_skipped ? step.block + 1 : step.block, step.head});
        }
        ptx::mbarrier_wait(smem.v_full(), kv_parity);
        if (steps == 1) {
            make_step<true, true>(step);
        } else {
            if (is_skipped) {
                skip_step(step.number);
            } else {
                make_step<true, false>(step);
            }
            step = next(step);
#pragma unroll 1
            while (step.number < last) {
                if (!kSplits || is_masked(step.block) || is_masked(next(step).block)) {
                    make_step<false, false>(step);
                } else {
                    make_step<false, false, false>(step);
                }
                step = next(step);
            }
            make_step<false, true>(step);
        }
        if constexpr (kHasDq) {
            ptx::mbarrier_wait(smem.ds_full(last & 1), last >> 1 & 1);
            multiply_dq(last & 1);
            ptx::wgmma_wait_group<0>();
            add_dq();
            arrive(smem.ds_empty(last & 1));
        }
        ptx::wgmma_wait_group<0>();
        keep_registers(dk);
        keep_registers(dv);
    }

    // With dQ of the step before.  `kMayMask`: pairs of it or of the next step may not count.
    template <bool kFirst, bool kLast, bool kMayMask = kMasks>
    __device__ __forceinline__ void make_step(const Step& step) {
        constexpr bool kMakesDq = kHasDq && !kFirst;
        const int n = step.number, stage = n & 1;
        const unsigned parity = n >> 1 & 1;
        static_assert(Layout::kDoStages == 2, "a stage is a bit of a step's number");
        const int q = q_stage(n), next_q = q == CFG.q_stages - 1 ? 0 : q + 1;
        ptx::mbarrier_wait(smem.do_full(stage), parity);
        multiply_scores(dp, v_rows(), smem.d_o(stage));
        if constexpr (!has_slopes<TRAITS>()) pack_p();
        multiply_gradient(dv, p_operand, smem.d_o(stage));
        ptx::wgmma_wait_group<1>();
        keep_registers(dp);
        make_ds<kMayMask>(stage, step.block);
        if constexpr (CFG.dynamic && kLast) arrive(smem.v_empty());
        if constexpr (kHasDq) {
            if constexpr (CFG.dynamic && kFirst) wait_for_copies();
            ptx::mbarrier_wait(smem.ds_empty(stage), parity ^ 1);
            store_ds(stage);
        }
        if constexpr (kEarlyDv) {
            ptx::wgmma_wait_group<0>();
            keep_registers(dv);
            arrive(smem.do_empty(stage));
        }
        if constexpr (kMakesDq) ptx::mbarrier_wait(smem.ds_full(stage ^ 1), n - 1 >> 1 & 1);
        if constexpr (!kLast) ptx::mbarrier_wait(smem.q_full(next_q), q_parity(n + 1));
        if constexpr (CFG.turns) take_turn();
        if constexpr (kMakesDq) multiply_dq(stage ^ 1);
        multiply_gradient(dk, ds_operand, smem.q(q));
        if constexpr (!kLast) multiply_scores(s, k_rows(), smem.q(next_q));
        if constexpr (CFG.turns) pass_turn();
        // For dQ or, where there is none, for dV.
        if constexpr (kMakesDq || !kEarlyDv) ptx::wgmma_wait_group<1 + !kLast>();
        if constexpr (!kEarlyDv) {
            keep_registers(dv);
            arrive(smem.do_empty(stage));
        }
        if constexpr (kMakesDq) {
            add_dq();
            arrive(smem.ds_empty(stage ^ 1));
            advance_dq(step.head == 0);
        }
        ptx::wgmma_wait_group<0>();
        keep_registers(dk);
        arrive(smem.q_empty(q));
        if constexpr (!kLast) {
            keep_registers(s);
            weigh<kMayMask>(next_q, next(step));
        }
    }

    // The same with `same_step`.
    __device__ __forceinline__ void accumulate_in_step(int steps, Step step, unsigned kv_parity) {
        const int last = step.number + steps - 1;
        ptx::mbarrier_wait(smem.k_full(), kv_parity);
        ptx::mbarrier_wait(smem.v_full(), kv_parity);
        if constexpr (CFG.dynamic) wait_for_copies();
        if (skips(steps, step.block)) {
            skip_step(step.number);
            add_dq_of(step);
            step = next(step);
        }
#pragma unroll 1
        for (; step.number <= last; step = next(step)) {
            if (kMasks && is_masked(step.block)) {
                make_whole_step<true>(step);
            } else {
                make_whole_step<false>(step);
            }
        }
        if constexpr (CFG.dynamic) arrive(smem.v_empty());
    }

    template <bool kMayMask>
    __device__ __forceinline__ void make_whole_step(const Step& step) {
        const int n = step.number, stage = n & 1, q = q_stage(n);
        ptx::mbarrier_wait(smem.q_full(q), q_parity(n));
        multiply_scores(s, k_rows(), smem.q(q));
        ptx::mbarrier_wait(smem.do_full(stage), n >> 1 & 1);
        if constexpr (has_slopes<TRAITS>()) {
            // Slopes of scores are in dP's place meanwhile.
            ptx::wgmma_wait_group<0>();
            keep_registers(s);
            weigh<kMayMask>(q, step);
            multiply_scores(dp, v_rows(), smem.d_o(stage));
        } else {
            multiply_scores(dp, v_rows(), smem.d_o(stage));
            ptx::wgmma_wait_group<1>();
            keep_registers(s);
            weigh<kMayMask>(q, step);
            pack_p();
        }
        ptx::wgmma_wait_group<0>();
        keep_registers(dp);
        make_ds<kMayMask>(stage, step.block);
        // In this stage was dS of the step before the last, whose dQ both had before they met.
        store_ds(stage);
        multiply_gradient(dv, p_operand, smem.d_o(stage));
        ptx::mbarrier_wait(smem.ds_full(stage), n >> 1 & 1);
        multiply_dq(stage);
        ptx::wgmma_wait_group<1>();
        keep_registers(dv);
        arrive(smem.do_empty(stage));
        multiply_gradient(dk, ds_operand, smem.q(q));
        ptx::wgmma_wait_group<1>();
        add_dq();
        advance_dq(step.head + 1 == p.heads_per_kv);
        ptx::wgmma_wait_group<0>();
        keep_registers(dk);
        arrive(smem.q_empty(q));
    }

    // dQ of a step to which this warpgroup adds nothing else.
    __device__ __forceinline__ void add_dq_of(const Step& step) {
        const int stage = step.number & 1;
        ptx::mbarrier_wait(smem.ds_full(stage), step.number >> 1 & 1);
        multiply_dq(stage);
        ptx::wgmma_wait_group<0>();
        add_dq();
        advance_dq(step.head + 1 == p.heads_per_kv);
    }

    // To the sums of the next head of the group or, after the last one, of the next block.
    __device__ __forceinline__ void advance_dq(bool is_last_head) {
        const int of_head = p.padded_q / CFG.B_r;
        dq_tile += of_head;
        if (is_last_head) dq_tile += step_direction(p) - p.heads_per_kv * of_head;
    }

    // Whether of a tile's first queries none sees the second warpgroup's keys.
    __device__ __forceinline__ bool skips(int steps, int first_block) const {
        return kSkips && warpgroup == 1 && steps > 1 && p.heads_per_kv == 1 &&
               first_block * CFG.B_r + CFG.B_r + sequence.diagonal(p) <= first_key;
    }

    // Such a step.
    __device__ __forceinline__ void skip_step(int n) {
        const int stage = n & 1;
        const unsigned parity = n >> 1 & 1;
        if constexpr (kHasDq) {
            if constexpr (!CFG.same_step) {
                if constexpr (CFG.dynamic) wait_for_copies();
                ptx::mbarrier_wait(smem.ds_empty(stage), parity ^ 1);
            }
#pragma unroll
            for (int t = 0; t < kSteps; ++t) {
#pragma unroll
                for (int i = 0; i < 4; ++i) ds_operand[t][i] = 0;
            }
            store_ds(stage);
        }
        ptx::mbarrier_wait(smem.q_full(q_stage(n)), q_parity(n));
        arrive(smem.q_empty(q_stage(n)));
        ptx::mbarrier_wait(smem.do_full(stage), parity);
        arrive(smem.do_empty(stage));
        if constexpr (CFG.turns) {
            take_turn();
            pass_turn();
        }
    }

    // --- steps -----------------------------------------------------------------------------

    // Those of a head that see any of the tile's keys.  Not what was found before: it would take up
    // registers.
    __device__ __forceinline__ Range query_blocks() const {
        unsigned first = first_key;
        if constexpr (TRAITS.diagonal()) keep_register(first);
        const int key = static_cast<int>(first) - 64 * warpgroup;
        return queries_of_keys<TRAITS>(p, sequence, {key, key + CFG.B_c})
            .template blocks<CFG.B_r>();
    }
    __device__ __forceinline__ Step next(const Step& step) const {
        if (step.head + 1 < p.heads_per_kv) return {step.number + 1, step.block, step.head + 1};
        return {step.number + 1, step.block + step_direction(p), 0};
    }
    __device__ __forceinline__ static int q_stage(int n) {
        return CFG.q_stages == 2 ? n & 1 : n % CFG.q_stages;
    }
    __device__ __forceinline__ static unsigned q_parity(int n) {
        return CFG.q_stages == 2 ? n >> 1 & 1 : n / CFG.q_stages & 1;
    }
    __device__ __forceinline__ unsigned k_rows() const {
        return smem.k() + warpgroup * 64 * KvTile::kRowBytes;
    }
    __device__ __forceinline__ unsigned v_rows() const {
        return smem.v() + warpgroup * 64 * KvTile::kRowBytes;
    }
    // Every warp arrives for itself: it has waited for its own products.
    __device__ __forceinline__ void arrive(unsigned barrier) const {
        __syncwarp();
        if (lane == 0) ptx::mbarrier_arrive(barrier);
    }
    __device__ __forceinline__ void take_turn() const {
        ptx::bar_sync(static_cast<int>(NamedBarrier::TURN) + warpgroup, kAllThreads);
    }
    __device__ __forceinline__ void pass_turn() const {
        ptx::bar_arrive(static_cast<int>(NamedBarrier::TURN) + (warpgroup ^ 1), kAllThreads);
    }

    // --- products, each a group that the caller waits for ------------------------------------

    // S^T = K Q^T or dP^T = V dO^T, of this warpgroup's rows.
    __device__ __forceinline__ static void multiply_scores(float (&scores)[kScores], unsigned rows,
                                                           unsigned queries) {
        backward::multiply_scores<KvTile, QTile, kBf16>(scores, rows, queries);
    }

    // dV += P^T dO or dK += dS^T Q.
    __device__ __forceinline__ static void multiply_gradient(float (&gradient)[kGradients],
                                                             const unsigned (&operand)[kSteps][4],
                                                             unsigned queries) {
        multiply_operand<QTile, kBf16>(gradient, operand, queries);
    }

    // 64 rows of dQ = dS K, in the place of dP, which is done with by then.
    __device__ __forceinline__ float (&dq())
        [kDqColumns / 2] { return reinterpret_cast<float (&)[kDqColumns / 2]>(dp); }

    __device__ __forceinline__ void multiply_dq(int stage) {
        const unsigned rows = smem.ds(stage) + (kByRows ? warpgroup * 64 * DsTile::kRowBytes : 0);
        const unsigned columns = smem.k() + (kByRows ? 0 : warpgroup * KvTile::kPanelBytes);
        const auto a = ptx::WgmmaDescriptor::of(rows, 16);
        const auto b = ptx::WgmmaDescriptor::of(columns, KvTile::kPanelBytes);
        ptx::wgmma_fence();
        ptx::WgmmaOverwriting<kDqColumns, kBf16>::ss4_n_major(dq(), a.bits(), b.bits());
        ptx::WgmmaNMajor<kDqColumns, kBf16>::ss4(dq(), a.advance(DsTile::kPanelBytes).bits(),
                                                 b.advance(64 * KvTile::kRowBytes).bits());
        ptx::wgmma_commit_group();
    }

    // --- elements ----------------------------------------------------------------------------

    // P of a step whose S, and LSE in a stage of Q, are there.  With a soft cap or a hook it is
    // packed, and multiplied with the slope.
    template <bool kMayMask>
    __device__ __forceinline__ void weigh(int stage, const Step& step) {
        Keys::template weigh<kMayMask>(s, dp, smem.lse2(stage), step.block, step.head);
        if constexpr (has_slopes<TRAITS>()) {
            pack_p();
#pragma unroll
            for (int i = 0; i < kScores; ++i) s[i] = with_slope<TRAITS>(s[i], dp[i]);
        }
    }

    __device__ __forceinline__ void pack_p() { pack<CFG.dtype>(p_operand, s); }

    // dS of a block of queries, with D in a stage of dO.
    template <bool kMayMask>
    __device__ __forceinline__ void make_ds(int stage, int block) {
        const unsigned at = smem.delta(stage) + 8 * (lane % 4);
#pragma unroll
        for (int j = 0; j < kScores / 4; ++j) {
            float delta[2];
            ptx::ld_shared_v2(delta, at + 32 * j);
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                dp[4 * j + e] = s[4 * j + e] * (dp[4 * j + e] - delta[e % 2]);
            }
        }
        if (kMayMask && is_masked(block)) hide(dp, block);
        pack<CFG.dtype>(ds_operand, dp);
    }

    // dS^T in registers, to dS in shared memory: rows of queries, a panel of this warpgroup's keys.
    __device__ __forceinline__ void store_ds(int stage) const {
        const unsigned panel = smem.ds(stage) + warpgroup * DsTile::kPanelBytes;
#pragma unroll
        for (int t = 0; t < kSteps; ++t) {
            const int row = 16 * t + lane / 16 * 8 + lane % 8;
            const int chunk = 2 * warp + lane / 8 % 2;
            ptx::stmatrix_x4_trans(panel + DsTile::offset(row, chunk), ds_operand[t]);
        }
        ptx::fence_proxy_async_shared();
        arrive(smem.ds_full(stage));
    }

    __device__ __forceinline__ void add_dq() {
        float (&of_thread)[kDqColumns / 2] = dq();
        keep_registers(of_thread);
        constexpr int kTile = CFG.B_r * CFG.padded_d();
        constexpr int kPart = 64 * (kByRows ? kDqColumns : 64);  // of the first warpgroup
        float* const to = p.dq_sum + static_cast<long long>(dq_tile) * kTile + kPart * warpgroup +
                          16 * kDqColumns * warp + 4 * lane;
#pragma unroll
        for (int j = 0; j < kDqColumns / 8; ++j) {
            ptx::red_add_v4(to + 128 * j, of_thread[4 * j], of_thread[4 * j + 1],
                            of_thread[4 * j + 2], of_thread[4 * j + 3]);
        }
    }

    // --- the way out ---------------------------------------------------------------------------

    // Until the gradients of the tile before have left their place.
    __device__ __forceinline__ void wait_for_copies() const {
        if (warp == 0 && ptx::elect_sync()) ptx::cp_async_bulk_wait_group_read();
        ptx::bar_sync(own_barrier(), kThreads);
    }
    __device__ __forceinline__ int own_barrier() const {
        return static_cast<int>(NamedBarrier::GRADIENTS) + warpgroup;
    }

    __device__ __forceinline__ void store(const Tile& tile) {
        // Both warpgroups are done with what was in the gradients' place: K and V, or dS.
        if constexpr (kHasDq || !CFG.dynamic) {
            constexpr int kBarrier = static_cast<int>(NamedBarrier::CONSUMERS);
            if constexpr (kByRows || CFG.padded_d() % 64 == 0) {
                ptx::bar_sync(kBarrier, kAllThreads);
            } else {
                ptx::barrier_sync(kBarrier, kAllThreads);  // each has code of its own
            }
        }
        const Sum of_dk{smem.base, kPanels * warpgroup};
        const Sum of_dv{smem.base, kPanels * (2 + warpgroup)};
        if constexpr (CFG.cluster > 1) {
            static_assert(Sum::kBytes <= 2 * KvTile::kBytes +
                                             (CFG.q_stages + Layout::kDoStages) * QTile::kBytes,
                          "sums of a cluster need more room than K, V, Q and dO have");
            of_dk.hand_over(dk);
            of_dv.hand_over(dv);
            meet_cluster();
            of_dk.add_up(dk);
            of_dv.add_up(dv);
            ptx::fence_proxy_async_shared();
            meet_cluster();
        }
        if constexpr (CFG.dynamic) wait_for_copies();
        const unsigned dk_place = smem.dk(warpgroup), dv_place = smem.dv(warpgroup);
        stage_gradient<KvTile, CFG.dtype>(dk, gradient_scale<TRAITS>(p), dk_place, warp, lane);
        stage_gradient<KvTile, CFG.dtype>(dv, 1.f, dv_place, warp, lane);
        ptx::fence_proxy_async_shared();
        ptx::bar_sync(own_barrier(), kThreads);
        if (warp == 0 && ptx::elect_sync()) {
            const BoxPlace place = sequence.template kv_box<64>(first_key, tile.batch);
            send_gradient<KvTile, TRAITS.packed>(dk_map, dk_place, tile.head, place, of_dk);
            send_gradient<KvTile, TRAITS.packed>(dv_map, dv_place, tile.head, place, of_dv);
            ptx::cp_async_bulk_commit_group();
        }
    }
};

}  // namespace fa_tune::sm90::backward
