// The two products of a consumer warpgroup, S, P and O of its 64 query rows in registers.
//
//              keys (B_c)                       d_v
//            +---------+                     +---------+
//     rows   | S, P    |  = Q K^T     rows   | O       |  += P V
//            +---------+                     +---------+
//
// Both only begin: a wgmma group each, which the caller waits for.
#pragma once

#include "compiler.cuh"
#include "ptx/wgmma.cuh"
#include "ptx/wgmma_descriptor.cuh"
#include "sm90/fwd/shared_memory.cuh"
#include "sm90/fwd/softmax.cuh"

namespace fa_tune::sm90 {

template <Sm90Config CFG, bool kDiagonal>
struct Products {
    using QTile = typename SharedMemory<CFG>::QTile;
    using KBlock = typename SharedMemory<CFG>::KBlock;
    using VBlock = typename SharedMemory<CFG>::VBlock;
    static constexpr bool kBf16 = CFG.dtype == DType::BF16;
    static constexpr int kScores = CFG.B_c / 2;  // of a thread
    static constexpr int kOutputs = CFG.padded_d_v() / 2;
    static constexpr int kStepsQK = CFG.padded_d() / 16;
    static constexpr int kStepsPV = CFG.B_c / 16;
    using ProductQK = ptx::WgmmaM64K16<CFG.B_c, kBf16>;
    using ProductPV = ptx::WgmmaM64K16<CFG.padded_d_v(), kBf16>;

    const ptx::WgmmaDescriptor q_base, k_base, v_base;  // of stage 0
    float s[kScores];
    float o[kOutputs];
    unsigned probabilities[kStepsPV][4];

    __device__ __forceinline__ Products(const SharedAddress<CFG>& smem, int warpgroup)
        : q_base(ptx::WgmmaDescriptor::of(smem.q(warpgroup), 16)),
          k_base(ptx::WgmmaDescriptor::of(smem.k(0), 16)),
          v_base(ptx::WgmmaDescriptor::of(smem.v(0), VBlock::kPanelBytes)) {}

    // Where the compiler keeps everything uniform by itself: with one tile alone, where rows take
    // turns, and with adaptive_max unless blocks with a mask go through the loop of the others,
    // which is 5 % slower so.
    static constexpr bool kUniformByItself = CFG.scheduler == Scheduler::SINGLE ||
                                             CFG.rows_in_turn ||
                                             (CFG.adaptive_max && !(CFG.single_loop && kDiagonal));

    __device__ __forceinline__ static ptx::WgmmaDescriptor uniform(
        const ptx::WgmmaDescriptor& descriptor) {
        return kUniformByItself ? descriptor : descriptor.uniform();
    }

    // S = Q K^T, of Q and K in these stages.
    __device__ __forceinline__ void multiply_qk(int q_stage, int k_stage) {
        const auto q =
            uniform(q_base.advance(q_stage * CFG.mma_warpgroups * SharedMemory<CFG>::kQBytes));
        const auto k = uniform(k_base.advance(k_stage * KBlock::kBytes));
        keep_registers(s);
        ptx::wgmma_fence();
#pragma unroll
        for (int panel = 0; panel < KBlock::kPanels; ++panel) {
            const auto a_panel = q.advance(panel * QTile::kPanelBytes);
            const auto b_panel = k.advance(panel * KBlock::kPanelBytes);
            const int steps = kStepsQK - 4 * panel;
            if (steps >= 4) {
                ProductQK::ss4(s, a_panel.bits(), b_panel.bits(), panel > 0);
                continue;
            }
#pragma unroll
            for (int t = 0; t < steps; ++t) {
                ProductQK::ss(s, a_panel.advance(32 * t).bits(), b_panel.advance(32 * t).bits(),
                              panel > 0 || t > 0);
            }
        }
        ptx::wgmma_commit_group();
    }

    // O += P V, of V in this stage; without `accumulate`, O = P V.
    __device__ __forceinline__ void multiply_pv(int v_stage, int accumulate) {
        const auto v = uniform(v_base.advance(v_stage * VBlock::kBytes));
        keep_registers(o);
        ptx::wgmma_fence();
#pragma unroll
        for (int t = 0; t < kStepsPV; t += t + 4 <= kStepsPV ? 4 : 1) {
            const auto b = v.advance(16 * t * ptx::kSwizzleBytes).bits();
            const int add = t > 0 ? 1 : accumulate;
            if (t + 4 <= kStepsPV) {
                ProductPV::template rs4<true>(o, probabilities + t, b, add);
            } else {
                ProductPV::template rs<true>(o, probabilities[t], b, add);
            }
        }
        ptx::wgmma_commit_group();
    }

    // P in the layout of a register operand: the scores, rounded and packed in order.
    template <class Rounding>
    __device__ __forceinline__ void pack(const Rounding& softmax) {
#pragma unroll
        for (int i = 0; i < kScores / 2; ++i) {
            probabilities[i / 4][i % 4] = softmax.round(s[2 * i], s[2 * i + 1]);
        }
        keep_probabilities();
    }

    __device__ __forceinline__ void keep_probabilities() {
#pragma unroll
        for (int t = 0; t < kStepsPV; ++t) keep_registers(probabilities[t]);
    }

    // Row i of a thread by a[i].
    __device__ __forceinline__ void scale_output(const float (&a)[2]) {
#pragma unroll
        for (int j = 0; j < kOutputs; ++j) o[j] *= a[j / 2 % 2];
    }

    // Row i alone.
    __device__ __forceinline__ void scale_output(const float (&a)[2], int i) {
#pragma unroll
        for (int j = 0; j < kOutputs; ++j) {
            if (j / 2 % 2 == i) o[j] *= a[i];
        }
    }
};

}  // namespace fa_tune::sm90
