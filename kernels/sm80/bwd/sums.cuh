// fp32 sums of dQ in global memory: CTAs add to them, and a last launch rounds them.
//
// A tile of 16 rows and 8 columns is as it lies in an accumulator, so that a warp adds to whole
// lines; tiles are in the order of rows, then columns:
//
//     since 9.0    [lane][4]      an add of four words
//     before       [4][lane]      four adds
#pragma once

#include "common/backward/params.cuh"
#include "common/backward/prepare.cuh"
#include "mma_sync/element.cuh"
#include "ptx/red.cuh"
#include "ptx/red_v4.cuh"
#include "sm80/bwd/constraints.cuh"

namespace fa_tune::sm80::backward {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
constexpr bool kAddsFour = true;
#else
constexpr bool kAddsFour = false;
#endif

constexpr int kSumTile = 16 * 8;
constexpr int kFinishThreads = 256;

// `tile`: of the sums.
__device__ __forceinline__ void add_to_sums(float* tile, const float (&of_lane)[4], int lane) {
    if constexpr (kAddsFour) {
        ptx::red_add_v4(tile + 4 * lane, of_lane[0], of_lane[1], of_lane[2], of_lane[3]);
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) ptx::red_add(tile + 32 * i + lane, of_lane[i]);
    }
}

// What a quad has of a tile, 16 words: rows `quad` and quad + 8, eight columns each.
__device__ __forceinline__ void load_sums(float (&rows)[2][8], const float* tile, int quad) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        // Of lane k of the quad, or accumulator k of its four lanes.
        const float* const from = kAddsFour ? tile + 16 * quad + 4 * k : tile + 32 * k + 4 * quad;
        const uint4 four = *reinterpret_cast<const uint4*>(from);
        const unsigned words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int lane = kAddsFour ? k : i, element = kAddsFour ? i : k;
            rows[element / 2][2 * lane + element % 2] = __int_as_float(words[i]);
        }
    }
}

// A CTA rounds the sums of 128 queries of one head, as prepare_rows numbers them.
template <Sm80BackwardConfig CFG, WorkloadTraits TRAITS>
__global__ void __launch_bounds__(kFinishThreads)
    sm80_backward_finish(const __grid_constant__ BackwardParams p) {
    using Elem = mma_sync::Element<CFG.dtype>;
    constexpr int kAcross = CFG.d_head / 8;
    constexpr int kQuads = kPreparedRows / 16 * kAcross * 8;
    const auto block = QueryBlock<TRAITS.packed>::of(p, blockIdx.x);
    const int& queries = block.sequence.queries(p);
    if (TRAITS.packed && queries == 0) return;
    const auto rows_of_head = block.rows(p);
    const float* const sums =
        p.dq_sum + static_cast<long long>(blockIdx.x) * kPreparedRows * CFG.d_head;
#pragma unroll
    for (int i = threadIdx.x; i < kQuads; i += kFinishThreads) {
        const int tile = i / 8, quad = i % 8;
        float rows[2][8];
        load_sums(rows, sums + tile * kSumTile, quad);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = block.first_row + tile / kAcross * 16 + 8 * half + quad;
            if (row >= queries) continue;
            unsigned words[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                words[j] = Elem::pack(rows[half][2 * j] * p.softmax_scale,
                                      rows[half][2 * j + 1] * p.softmax_scale);
            }
            unsigned short* const to =
                rows_of_head.place(p.dq, p.dq_strides, row) + tile % kAcross * 8;
            *reinterpret_cast<uint4*>(to) = {words[0], words[1], words[2], words[3]};
        }
    }
}

}  // namespace fa_tune::sm80::backward
