// The products of a consumer warpgroup, 64 rows of each.  They only begin: the caller waits.
#pragma once

#include "compiler.cuh"
#include "ptx/wgmma.cuh"
#include "ptx/wgmma_descriptor.cuh"
#include "ptx/wgmma_overwrite.cuh"

namespace fa_tune::sm90::backward {

// scores = A B^T, or with kAdds that more; of these 64 rows of tile A and all rows of tile B.
template <class A, class B, bool kBf16, bool kAdds = false, int kScores>
__device__ __forceinline__ void add_scores(float (&scores)[kScores], unsigned rows,
                                           unsigned block) {
    using Scores = ptx::WgmmaM64K16<B::kRows, kBf16>;
    const auto a = ptx::WgmmaDescriptor::of(rows, 16);
    const auto b = ptx::WgmmaDescriptor::of(block, 16);
    if constexpr (!kAdds) {
        using First = ptx::WgmmaOverwriting<B::kRows, kBf16>;
        if constexpr (B::kColumns >= 64) {
            First::ss4(scores, a.bits(), b.bits());
        } else {
            First::ss2(scores, a.bits(), b.bits());
#pragma unroll
            for (int t = 2; t < B::kColumns / 16; ++t) {
                Scores::ss(scores, a.advance(32 * t).bits(), b.advance(32 * t).bits(), 1);
            }
        }
    }
#pragma unroll
    for (int panel = !kAdds; panel < B::kPanels; ++panel) {
        const auto of_a = a.advance(panel * A::kPanelBytes);
        const auto of_b = b.advance(panel * B::kPanelBytes);
        const int steps = B::kColumns / 16 - 4 * panel;
        if (steps >= 4) {
            Scores::ss4(scores, of_a.bits(), of_b.bits(), 1);
        } else {
#pragma unroll
            for (int t = 0; t < steps; ++t) {
                Scores::ss(scores, of_a.advance(32 * t).bits(), of_b.advance(32 * t).bits(), 1);
            }
        }
    }
}

// The same as a group.
template <class A, class B, bool kBf16, int kScores>
__device__ __forceinline__ void multiply_scores(float (&scores)[kScores], unsigned rows,
                                                unsigned block) {
    ptx::wgmma_fence();
    add_scores<A, B, kBf16>(scores, rows, block);
    ptx::wgmma_commit_group();
}

// sums += operand B, of all rows and columns of tile B.
template <class B, bool kBf16, int kSteps, int kSums>
__device__ __forceinline__ void add_products(float (&sums)[kSums],
                                             const unsigned (&operand)[kSteps][4], unsigned block) {
    using Products = ptx::WgmmaM64K16<B::kColumns, kBf16>;
    const auto b = ptx::WgmmaDescriptor::of(block, B::kPanelBytes);
#pragma unroll
    for (int t = 0; t < kSteps; t += t + 4 <= kSteps ? 4 : 1) {
        const auto at = b.advance(16 * t * B::kRowBytes).bits();
        if (t + 4 <= kSteps) {
            Products::template rs4<true>(sums, operand + t, at, 1);
        } else {
            Products::template rs<true>(sums, operand[t], at, 1);
        }
    }
}

// The same as a group.
template <class B, bool kBf16, int kSteps, int kSums>
__device__ __forceinline__ void multiply_operand(float (&sums)[kSums],
                                                 const unsigned (&operand)[kSteps][4],
                                                 unsigned block) {
    keep_registers(sums);
    ptx::wgmma_fence();
    add_products<B, kBf16>(sums, operand, block);
    ptx::wgmma_commit_group();
}

}  // namespace fa_tune::sm90::backward
