// A consumer warpgroup of the kernel for dK and dV of wide heads: one gradient of 64 keys, against
// all queries that see them, 64 a step, and these of all heads of a group.
//
//     warpgroup 1    S^T = K Q^T     P = exp2(scale S - LSE)     dV += P^T dO
//                                    | fp32, shared memory
//     warpgroup 2    dP^T = V dO^T   dS = P (dP - D)             dK += dS^T Q
//
// Both gradients of 64 keys take up what a thread has of registers twice, and there is no product
// of fewer than 64 rows: so each warpgroup has one of them, and makes half of the scores.  A thread
// has the elements in dP that its counterpart has in P, so these pass as they lie in registers.
//
//     P(i) or dS(i) is in registers, rounded; nothing is under way
//     issue dV(i) or dK(i), and S(i + 1) or dP(i + 1)    with `turns` when it is its turn
//     wait for dV or dK    give dO(i) or Q(i) back
//     wait for S or dP     P(i + 1) or dS(i + 1)         (under the other warpgroup's products)
#pragma once

#include "common/backward/query_rows.cuh"
#include "common/constants.cuh"
#include "compiler.cuh"
#include "ptx/bar.cuh"
#include "ptx/barrier_sync.cuh"
#include "ptx/elect.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/shared_words.cuh"
#include "sm90/bwd/cluster_share.cuh"
#include "sm90/bwd/gradients.cuh"
#include "sm90/bwd/key_rows.cuh"
#include "sm90/bwd/named_barriers.cuh"
#include "sm90/bwd/products.cuh"
#include "sm90/bwd/scheduler.cuh"
#include "sm90/bwd/wide_shared_memory.cuh"

namespace fa_tune::sm90::backward {

// `kMakesDv`: whether it is warpgroup 1 of these.
template <Sm90BackwardConfig CFG, WorkloadTraits TRAITS, bool kMakesDv>
struct WideConsumer : KeyRows<64, TRAITS> {
    using Keys = KeyRows<64, TRAITS>;
    using Keys::first_head, Keys::first_key, Keys::first_slope, Keys::hide, Keys::is_masked;
    using Keys::kScores, Keys::lane, Keys::p, Keys::sequence, Keys::warp;
    using Layout = WideSharedMemory<CFG>;
    using Tile = WorkTile<TRAITS.packed>;
    // Scores are Rows times blocks of ScorePart, sums take blocks of SumPart.
    using Rows = PanelTile<64, kMakesDv ? CFG.padded_d() : CFG.padded_d_v()>;
    using Gradient = PanelTile<64, kMakesDv ? CFG.padded_d_v() : CFG.padded_d()>;
    using ScorePart = PanelTile<64, Rows::kColumns / Layout::kParts>;
    using SumPart = PanelTile<64, Gradient::kColumns / Layout::kParts>;
    static constexpr bool kBf16 = CFG.dtype == DType::BF16;
    static constexpr int kRows = Layout::kRows, kParts = Layout::kParts;
    static constexpr int kScoreSlots = kMakesDv ? Layout::kQSlots : Layout::kDoSlots;
    static constexpr int kSumSlots = kMakesDv ? Layout::kDoSlots : Layout::kQSlots;
    static constexpr int kSteps = kRows / 16;  // along k of dK and dV
    static constexpr int kThreads = 128, kAllThreads = 2 * kThreads;
    using Sum = ClusterSum<CFG.cluster, Layout::KTile::kPanels + Layout::VTile::kPanels,
                           SumPart::kColumns / 2>;

    struct Step {
        int block;  // of queries
        int head;   // of the group
    };

    const ptx::TensorMap& map;  // of the gradient
    const WideSharedAddress<CFG> smem;
    RingPosition<kScoreSlots> score_ring = {};
    RingPosition<kSumSlots> sum_ring = {};
    float sums[kParts][SumPart::kColumns / 2];  // of the gradient
    float s[kScores];                           // of S and P, or of dP and dS
    unsigned operand[kSteps][4];

    __device__ __forceinline__ WideConsumer(const BackwardParams& params, const ptx::TensorMap& map,
                                            const WideSharedAddress<CFG>& smem)
        : Keys{params, static_cast<int>(threadIdx.x / 32 % 4), static_cast<int>(threadIdx.x % 32),
               params.softmax_scale * kLog2E},
          map(map),
          smem(smem) {}

    __device__ __forceinline__ void run(const Tile& tile) {
        if constexpr (!kMakesDv) {
            ptx::bar_arrive(static_cast<int>(NamedBarrier::WEIGHTS_EMPTY), kAllThreads);
            if constexpr (CFG.turns) pass_turn();
        }
        sequence = tile.sequence;
        if constexpr (TRAITS.alibi) {
            first_slope = slope_index(p, sequence.element(tile.batch), tile.head * p.heads_per_kv);
        }
        if constexpr (TRAITS.hook) {
            first_head = {sequence.element(tile.batch), tile.head * p.heads_per_kv};
        }
        unsigned rows_parity = 0;
#pragma unroll 1
        for (int half = 0; half < CFG.B_c / kRows; ++half) {
            first_key = tile.block * CFG.B_c + half * kRows;
            if (first_key >= sequence.keys(p)) break;
            const Range blocks =
                queries_of_keys<TRAITS>(p, sequence, {first_key, first_key + kRows})
                    .template blocks<kRows>();
            const StepShare share = share_of_cta<CFG.cluster>(blocks.count() * p.heads_per_kv);
            const int passed = share.first / p.heads_per_kv;
#pragma unroll
            for (int part = 0; part < kParts; ++part) {
                for (float& sum : sums[part]) sum = 0.f;
            }
            if (share.count > 0) {
                ptx::mbarrier_wait(kMakesDv ? smem.k_full() : smem.v_full(), rows_parity);
                rows_parity ^= 1;
                accumulate(share.count, {starting_block(p, blocks) + step_direction(p) * passed,
                                         share.first - passed * p.heads_per_kv});
            }
            store(tile);
        }
    }

  private:
    __device__ __forceinline__ void accumulate(int steps, Step step) {
        int slot = multiply_scores();
        ptx::wgmma_wait_group<0>();
        keep_registers(s);
        make_operand(slot, step);
#pragma unroll 1
        while (--steps > 0) {
            step = next(step);
            if constexpr (CFG.turns) take_turn();
            const int sum_slot = multiply_operand();
            slot = multiply_scores();
            if constexpr (CFG.turns) pass_turn();
            ptx::wgmma_wait_group<1>();
            keep_sums();
            give_back<kSumSlots>(sum_empty(sum_slot), sum_empty(0), sum_slot);
            ptx::wgmma_wait_group<0>();
            keep_registers(s);
            make_operand(slot, step);
        }
        const int sum_slot = multiply_operand();
        ptx::wgmma_wait_group<0>();
        keep_sums();
        give_back<kSumSlots>(sum_empty(sum_slot), sum_empty(0), sum_slot);
    }

    __device__ __forceinline__ Step next(const Step& step) const {
        if (step.head + 1 < p.heads_per_kv) return {step.block, step.head + 1};
        return {step.block + step_direction(p), 0};
    }

    __device__ __forceinline__ void take_turn() const {
        ptx::bar_sync(static_cast<int>(NamedBarrier::TURN) + !kMakesDv, kAllThreads);
    }
    __device__ __forceinline__ void pass_turn() const {
        ptx::bar_arrive(static_cast<int>(NamedBarrier::TURN) + kMakesDv, kAllThreads);
    }

    __device__ __forceinline__ unsigned score_full(int i) const {
        return kMakesDv ? smem.q_full(i) : smem.do_full(i);
    }
    __device__ __forceinline__ unsigned score_empty(int i) const {
        return kMakesDv ? smem.q_empty(i) : smem.do_empty(i);
    }
    __device__ __forceinline__ unsigned sum_full(int i) const {
        return kMakesDv ? smem.do_full(i) : smem.q_full(i);
    }
    __device__ __forceinline__ unsigned sum_empty(int i) const {
        return kMakesDv ? smem.do_empty(i) : smem.q_empty(i);
    }

    // The parts of a block, of which the first is in slot `first`, with its barrier and slot 0's.
    // Every warp arrives for itself: it has waited for its own products.
    template <int kSlots>
    __device__ __forceinline__ void give_back(unsigned barrier, unsigned barrier_0,
                                              int first) const {
        __syncwarp();
        if (lane == 0) {
            ptx::mbarrier_arrive(barrier);
            if constexpr (kParts == 2) {
                constexpr unsigned kBytes = sizeof(Mbarrier);
                ptx::mbarrier_arrive(first + 1 == kSlots ? barrier_0 : barrier + kBytes);
            }
        }
    }

    // --- products, each a group that the caller waits for; they return the first part's slot ----

    // S^T = K Q^T or dP^T = V dO^T.
    __device__ __forceinline__ int multiply_scores() {
        const unsigned rows = kMakesDv ? smem.k() : smem.v();
        int slots[kParts];
        // Before all products: the assembler serialises those of which some wait.
#pragma unroll
        for (int& slot : slots) {
            slot = score_ring.stage;
            ptx::mbarrier_wait(score_full(slot), score_ring.parity);
            score_ring.advance();
        }
        ptx::wgmma_fence();
        add_scores<Rows, ScorePart, kBf16>(s, rows, scores_block(slots[0]));
        if constexpr (kParts == 2) {
            add_scores<Rows, ScorePart, kBf16, true>(
                s, rows + ScorePart::kPanels * Rows::kPanelBytes, scores_block(slots[1]));
        }
        ptx::wgmma_commit_group();
        return slots[0];
    }

    // dV += P^T dO or dK += dS^T Q.
    __device__ __forceinline__ int multiply_operand() {
        int slots[kParts];
#pragma unroll
        for (int& slot : slots) {
            slot = sum_ring.stage;
            ptx::mbarrier_wait(sum_full(slot), sum_ring.parity);
            sum_ring.advance();
        }
        keep_sums();
        ptx::wgmma_fence();
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
            add_products<SumPart, kBf16>(sums[part], operand, sums_block(slots[part]));
        }
        ptx::wgmma_commit_group();
        return slots[0];
    }

    __device__ __forceinline__ unsigned scores_block(int slot) const {
        return kMakesDv ? smem.q(slot) : smem.d_o(slot);
    }
    __device__ __forceinline__ unsigned sums_block(int slot) const {
        return kMakesDv ? smem.d_o(slot) : smem.q(slot);
    }
    __device__ __forceinline__ void keep_sums() {
#pragma unroll
        for (int part = 0; part < kParts; ++part) keep_registers(sums[part]);
    }

    // --- elements ----------------------------------------------------------------------------

    // P or dS of a step whose S or dP is there, with its statistics in `slot`, which is given back.
    __device__ __forceinline__ void make_operand(int slot, const Step& step) {
        if constexpr (kMakesDv) {
            make_weights(slot, step);
        } else {
            make_ds(slot, step.block);
        }
    }

    __device__ __forceinline__ void make_weights(int slot, const Step& step) {
        float slopes[kScores];
        Keys::weigh(s, slopes, smem.lse2(slot), step.block, step.head);
        give_back<kScoreSlots>(score_empty(slot), score_empty(0), slot);
        if constexpr (has_slopes<TRAITS>()) {
            pack<CFG.dtype>(operand, s);
#pragma unroll
            for (int i = 0; i < kScores; ++i) s[i] = with_slope<TRAITS>(s[i], slopes[i]);
        }
        ptx::bar_sync(static_cast<int>(NamedBarrier::WEIGHTS_EMPTY), kAllThreads);
#pragma unroll
        for (int j = 0; j < kScores / 4; ++j) {
            const int words[4] = {__float_as_int(s[4 * j]), __float_as_int(s[4 * j + 1]),
                                  __float_as_int(s[4 * j + 2]), __float_as_int(s[4 * j + 3])};
            ptx::st_shared_v4(weights(j), words);
        }
        ptx::bar_arrive(static_cast<int>(NamedBarrier::WEIGHTS_FULL), kAllThreads);
        if constexpr (!has_slopes<TRAITS>()) pack<CFG.dtype>(operand, s);
    }

    __device__ __forceinline__ void make_ds(int slot, int block) {
        const unsigned delta = smem.delta(slot) + 8 * (lane % 4);
        ptx::bar_sync(static_cast<int>(NamedBarrier::WEIGHTS_FULL), kAllThreads);
#pragma unroll
        for (int j = 0; j < kScores / 4; ++j) {
            int words[4];
            float of_queries[2];
            ptx::ld_shared_v4(words, weights(j));
            ptx::ld_shared_v2(of_queries, delta + 32 * j);
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                float& x = s[4 * j + e];
                x = __int_as_float(words[e]) * (x - of_queries[e % 2]);
            }
        }
        ptx::bar_arrive(static_cast<int>(NamedBarrier::WEIGHTS_EMPTY), kAllThreads);
        give_back<kScoreSlots>(score_empty(slot), score_empty(0), slot);
        if (is_masked(block)) hide(s, block);
        pack<CFG.dtype>(operand, s);
    }

    // Where four of a thread's weights lie.
    __device__ __forceinline__ unsigned weights(int j) const {
        return smem.weights() + 16 * (kThreads * j + 32 * warp + lane);
    }

    // --- the way out ---------------------------------------------------------------------------

    __device__ __forceinline__ Sum of_cluster(int part) const {
        return {smem.base, (kMakesDv ? 0 : Layout::VTile::kPanels) + part * SumPart::kPanels};
    }

    __device__ __forceinline__ void store(const Tile& tile) {
        const int own = static_cast<int>(NamedBarrier::GRADIENTS) + !kMakesDv;
        const unsigned place = kMakesDv ? smem.v() : smem.k();
        // Both warpgroups are done with K and V, which were in their place.
        ptx::barrier_sync(static_cast<int>(NamedBarrier::CONSUMERS), kAllThreads);
        if constexpr (CFG.cluster > 1) {
            static_assert(Sum::kBytes <= Layout::KTile::kBytes + Layout::VTile::kBytes +
                                             Layout::kQSlots * Layout::QPart::kBytes +
                                             Layout::kDoSlots * Layout::DoPart::kBytes,
                          "sums of a cluster need more room than K, V, Q and dO have");
#pragma unroll
            for (int part = 0; part < kParts; ++part) of_cluster(part).hand_over(sums[part]);
            meet_cluster();
#pragma unroll
            for (int part = 0; part < kParts; ++part) of_cluster(part).add_up(sums[part]);
            ptx::fence_proxy_async_shared();
            meet_cluster();
        }
        const float factor = kMakesDv ? 1.f : gradient_scale<TRAITS>(p);
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
            stage_gradient<SumPart, CFG.dtype>(sums[part], factor, place + part * SumPart::kBytes,
                                               warp, lane);
        }
        ptx::fence_proxy_async_shared();
        ptx::bar_sync(own, kThreads);
        if (warp == 0 && ptx::elect_sync()) {
            send_gradient<Gradient, TRAITS.packed>(
                map, place, tile.head, sequence.template kv_box<kRows>(first_key, tile.batch),
                of_cluster(0));
            ptx::cp_async_bulk_commit_group();
            // Shared memory must outlast the copies that read it, and be free for the next half.
            ptx::cp_async_bulk_wait_group_read();
            ptx::mbarrier_arrive(kMakesDv ? smem.v_empty() : smem.k_empty());
        }
    }
};

}  // namespace fa_tune::sm90::backward
