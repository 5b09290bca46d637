// The way out for a warpgroup's 64 rows of a gradient.
//
//     registers  -- factor, round, stmatrix -->  64 rows of a tile of panels
//                -- bulk copies, a panel each -->  global memory
#pragma once

#include "common/dtype.cuh"
#include "common/sequence.cuh"
#include "compiler.cuh"
#include "ptx/cp_async_bulk.cuh"
#include "ptx/cvt.cuh"
#include "ptx/stmatrix.cuh"

namespace fa_tune::sm90::backward {

// Two numbers, rounded.
template <DType DTYPE>
__device__ __forceinline__ unsigned rounded(float lower, float upper) {
    return DTYPE == DType::BF16 ? ptx::cvt_rn_bf16x2_f32(lower, upper)
                                : ptx::cvt_rn_f16x2_f32(lower, upper);
}

// An operand A, of accumulators.
template <DType DTYPE, int kSteps, int kValues>
__device__ __forceinline__ void pack(unsigned (&operand)[kSteps][4], const float (&x)[kValues]) {
#pragma unroll
    for (int i = 0; i < kValues / 2; ++i) {
        operand[i / 4][i % 4] = rounded<DTYPE>(x[2 * i], x[2 * i + 1]);
    }
#pragma unroll
    for (int t = 0; t < kSteps; ++t) keep_registers(operand[t]);
}

// By all lanes of a warp, its 16 rows.  `rows`: the warpgroup's first row in Tile.
template <class Tile, DType DTYPE, int kValues>
__device__ __forceinline__ void stage_gradient(const float (&gradient)[kValues], float factor,
                                               unsigned rows, int warp, int lane) {
    static_assert(kValues == Tile::kColumns / 2, "a thread has half of a row's columns");
#pragma unroll
    for (int t = 0; t < Tile::kColumns / 16; ++t) {
        // Fragment t: register i has columns 16 t + 2 (lane % 4) and + 1 of row i % 2, 8 columns
        // further on from i = 2.
        unsigned r[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int j = 8 * t + 2 * i;
            r[i] = rounded<DTYPE>(gradient[j] * factor, gradient[j + 1] * factor);
        }
        ptx::stmatrix_x4(rows + Tile::offset(16 * warp + lane % 16, 2 * t + lane / 16), r);
    }
}

// By one thread, which closes the group: 64 rows of all panels that the CTA owns (ClusterSum).
template <class Tile, bool kPacked, class Sum>
__device__ __forceinline__ void send_gradient(const ptx::TensorMap& map, unsigned rows, int head,
                                              const BoxPlace& place, const Sum& sum) {
#pragma unroll
    for (int panel = 0; panel < Tile::kPanels; ++panel) {
        if (!sum.owns(panel)) continue;
        store_box<kPacked>(map, rows + panel * Tile::kPanelBytes, 64 * panel, head, place);
    }
}

}  // namespace fa_tune::sm90::backward
