// dQ from its fp32 sums: in order, times the factor, rounded.
//
// A CTA has 128 queries of one head, as in prepare.cuh.  Their sums are parts of 64 x 64, each of
// 128 threads as they lay in the accumulators of a warpgroup (consumer.cuh):
//
//     d_head 128    rows 0-63:    columns 0-63 | 64-127        parts 0 | 1
//                   rows 64-127:  columns 0-63 | 64-127              2 | 3
//     d_head 64     rows 0-63                                        0
//                   rows 64-127                                      1
//
// At d_head 96 parts 1 and 3 have 32 columns, up to 48 all have 32 or 48.
#pragma once

#include "common/backward/score_changes.cuh"
#include "ptx/global_words.cuh"
#include "ptx/griddepcontrol.cuh"
#include "sm90/bwd/constraints.cuh"
#include "sm90/bwd/gradients.cuh"
#include "sm90/bwd/prepare.cuh"

namespace fa_tune::sm90::backward {

constexpr int kFinishThreads = 256;

// Word i of lane q of a quad becomes word q of lane i.
__device__ __forceinline__ void transpose_in_quad(unsigned (&words)[4], int lane) {
#pragma unroll
    for (int apart = 1; apart <= 2; apart *= 2) {
        const bool upper = lane & apart;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (i & apart) continue;
            unsigned &low = words[i], &high = words[i + apart];
            const unsigned got = __shfl_xor_sync(kAllLanes, upper ? low : high, apart);
            (upper ? low : high) = got;
        }
    }
}

template <Sm90BackwardConfig CFG, WorkloadTraits TRAITS>
__global__ void __launch_bounds__(kFinishThreads)
    sm90_backward_finish(const __grid_constant__ BackwardParams p) {
    constexpr int kAcross = (CFG.padded_d() + 63) / 64;  // parts
    constexpr int kLastColumns = CFG.padded_d() - 64 * (kAcross - 1);
    constexpr int kParts = kPreparedRows / 64 * kAcross;
    ptx::griddepcontrol_launch_dependents();
    const auto block = QueryBlock<TRAITS.packed>::of(p, blockIdx.x);
    const int& queries = block.sequence.queries(p);
    const auto rows = block.rows(p);
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    const float* const sums =
        p.dq_sum + static_cast<long long>(blockIdx.x) * kPreparedRows * CFG.padded_d() + 4 * lane;
    const float scale = gradient_scale<TRAITS>(p);
    ptx::griddepcontrol_wait();
    if (TRAITS.packed && queries == 0) return;
#pragma unroll
    for (int part = threadIdx.x / 128; part < kParts; part += kFinishThreads / 128) {
        const int down_64 = part / kAcross * 64, column_64 = part % kAcross * 64;
        const int columns = column_64 + 64 > CFG.padded_d() ? kLastColumns : 64;
        const float* const from =
            sums + down_64 * CFG.padded_d() + 64 * column_64 + 16 * columns * warp;
        // Columns 8j + 2 (lane % 4) and + 1 of two rows.
        float of_thread[8][4];
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            if (8 * j < columns) ptx::ld_global_cg_v4(of_thread[j], from + 128 * j);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int half = i / 2, down = i % 2;
            if (32 * half >= columns) break;
            unsigned words[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const float (&four)[4] = of_thread[4 * half + j];
                words[j] = rounded<CFG.dtype>(four[2 * down] * scale, four[2 * down + 1] * scale);
            }
            // Eight columns of a row each.
            transpose_in_quad(words, lane);
            const int row = block.first_row + down_64 + 16 * warp + lane / 4 + 8 * down;
            const int column = column_64 + 32 * half + 8 * (lane % 4);
            if (row >= queries) continue;
            if (CFG.d_head % 32 != 0 && column >= CFG.d_head) continue;
            unsigned short* const to = rows.place(p.dq, p.dq_strides, row) + column;
            *reinterpret_cast<uint4*>(to) = {words[0], words[1], words[2], words[3]};
        }
    }
}

}  // namespace fa_tune::sm90::backward
