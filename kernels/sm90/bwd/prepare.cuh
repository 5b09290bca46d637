// What one pass needs first: LSE to base 2 and D of every query, and sums of dQ that are 0.
//
// A CTA has 128 queries of one head, blocks of a head one after another.  Each of d_head / 8
// neighbouring threads has 8 columns of a row.
#pragma once

#include "ptx/global_words.cuh"
#include "ptx/griddepcontrol.cuh"
#include "sm90/bwd/constraints.cuh"
#include "sm90/bwd/query_rows.cuh"
#include "sm90/bwd/row_products.cuh"

namespace fa_tune::sm90::backward {

constexpr int kPrepareThreads = 256;
constexpr int kPreparedRows = kBlockRows;  // of a CTA

template <Sm90BackwardConfig CFG, WorkloadTraits TRAITS>
__global__ void __launch_bounds__(kPrepareThreads)
    sm90_backward_prepare(const __grid_constant__ BackwardParams p) {
    constexpr int kOfRow = CFG.d_head / 8;  // threads
    constexpr int kRowsAtOnce = kPrepareThreads / kOfRow;
    constexpr int kRows = kPreparedRows / kRowsAtOnce;  // of a thread
    ptx::griddepcontrol_launch_dependents();
    const auto block = QueryBlock<TRAITS.packed>::of(p, blockIdx.x);
    const int& queries = block.sequence.queries(p);
    if (TRAITS.packed && queries == 0) return;
    const auto rows = block.rows(p);
    const int first_row = block.first_row + threadIdx.x / kOfRow;
    const int chunk = threadIdx.x % kOfRow;
    uint4 o[kRows], d_o[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
        const int row = first_row + i * kRowsAtOnce;
        o[i] = d_o[i] = {};
        if (row < queries) {
            o[i] = rows.of(p.o, p.o_strides, row)[chunk];
            d_o[i] = rows.of(p.d_o, p.do_strides, row)[chunk];
        }
    }
    // Also in 16 bytes a thread, neighbours side by side.
    float* const sums = p.dq_sum + static_cast<long long>(blockIdx.x) * kPreparedRows * CFG.d_head;
    const float zeros[4] = {};
#pragma unroll
    for (int i = threadIdx.x; i < kPreparedRows * CFG.d_head / 4; i += kPrepareThreads) {
        ptx::st_global_cg_v4(sums + 4 * i, zeros);
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
        const int row = first_row + i * kRowsAtOnce;
        float sum = product_of_chunks<CFG.dtype>(o[i], d_o[i]);
#pragma unroll
        for (int other = kOfRow / 2; other > 0; other /= 2) {
            sum += __shfl_xor_sync(kAllLanes, sum, other);
        }
        if (chunk != 0) continue;
        float lse2 = infinity();
        if (row < queries) lse2 = to_base_2(rows.lse(row));
        const long long at = rows.padded(row);
        p.lse2[at] = lse2;
        p.delta[at] = sum;
    }
}

}  // namespace fa_tune::sm90::backward
