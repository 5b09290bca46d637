// What a backward pass needs first: LSE to base 2 and D of every query, and sums of dQ that are 0.
//
// A CTA has 128 queries of one head, blocks of a head one after another.  Neighbouring threads,
// d_v / 8 and as many more as make a power of two, or as there are, have 8 columns of a row each.
#pragma once

#include "common/backward/query_rows.cuh"
#include "common/backward/row_products.cuh"
#include "common/chunks.cuh"
#include "common/problem.cuh"
#include "ptx/global_words.cuh"

namespace fa_tune {

constexpr int kPreparedRows = kBlockRows;  // of a CTA

// `kSumColumns`: of a row of the sums; 0: there are none.
template <int kThreads, DType DTYPE, WorkloadTraits TRAITS, int kColumns, int kSumColumns>
__device__ __forceinline__ void prepare_rows(const BackwardParams& p) {
    constexpr int kChunks = kColumns / 8;
    constexpr int kMost = kThreads / kPreparedRows;  // threads for each row
    constexpr int kOfRow = power_of_two_from(kChunks > kMost ? kChunks : kMost);
    constexpr int kRowsAtOnce = kThreads / kOfRow;
    constexpr int kRows = kPreparedRows / kRowsAtOnce;  // of a thread
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
        if (row < queries && (kChunks == kOfRow || chunk < kChunks)) {
            o[i] = rows.of(p.o, p.o_strides, row)[chunk];
            d_o[i] = rows.of(p.d_o, p.do_strides, row)[chunk];
        }
    }
    // Also in 16 bytes a thread, neighbours side by side.
    float* const sums = p.dq_sum + static_cast<long long>(blockIdx.x) * kPreparedRows * kSumColumns;
    const float zeros[4] = {};
#pragma unroll
    for (int i = threadIdx.x; i < kPreparedRows * kSumColumns / 4; i += kThreads) {
        ptx::st_global_cg_v4(sums + 4 * i, zeros);
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
        const int row = first_row + i * kRowsAtOnce;
        float sum = product_of_chunks<DTYPE>(o[i], d_o[i]);
#pragma unroll
        for (int other = kOfRow / 2; other > 0; other /= 2) {
            sum += __shfl_xor_sync(kAllLanes, sum, other);
        }
        if (chunk != 0) continue;
        float lse2 = infinity();
        if (row < queries) {
            lse2 = to_base_2<TRAITS>(p, rows.of_lse(p.lse, row));
            if constexpr (TRAITS.lse) sum -= rows.of_lse(p.grad_lse, row);
        }
        const long long at = rows.padded(row);
        p.lse2[at] = lse2;
        p.delta[at] = sum;
    }
}

}  // namespace fa_tune
