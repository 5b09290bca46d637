// What kernels of all families are told.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "params/layout.h"
#include "problem.h"

namespace fa_tune::core {

// Neighbouring query heads, a power of two, whose keys and values fit in their share of L2
// together.
inline std::int32_t l2_head_group(const Call& call, double share) {
    constexpr std::int64_t kMaxGroupedHeads = 64;
    const fa_tune_problem& problem = call.problem;
    const std::int64_t columns = std::int64_t{problem.d_head} + d_v_of(problem);
    const std::int32_t size_bytes = element_of(problem, FA_TUNE_TENSOR_K).size_bytes;
    const std::int64_t of_kv_head = problem.seq_len_kv * columns * size_bytes;
    const double of_head =
        static_cast<double>(of_kv_head) / static_cast<double>(problem.heads / problem.kv_heads);
    std::int32_t heads = 1;
    while (heads < kMaxGroupedHeads &&
           2 * heads * of_head <= share * static_cast<double>(call.l2_bytes)) {
        heads *= 2;
    }
    return heads;
}

// Masks, and what changes scores.
template <class Params>
void set_scores(const Launching& launching, Params& params) {
    const fa_tune_problem& problem = launching.call.problem;
    params.diagonal = last_diagonal_of(problem);
    const double scale = scale_of(problem), cap = problem.softcap;
    const bool hooked = problem.score_hook != 0;
    params.softmax_scale = static_cast<float>(hooked ? 1 : cap != 0 ? 2 * cap : scale);
    auto& score = params.score;
    score.score_scale = static_cast<float>(cap != 0 ? -2 * scale / cap / std::log(2) : scale);
    score.sink = launching.address<const float>(FA_TUNE_TENSOR_SINK);
    score.alibi_slopes = launching.address<const float>(FA_TUNE_TENSOR_ALIBI_SLOPES);
    score.alibi_batch_stride =
        static_cast<int>(launching.tensor(FA_TUNE_TENSOR_ALIBI_SLOPES).batch_stride);
    score.first_diagonal = first_diagonal_of(problem);
    if (problem.alibi != 0) {
        const auto farthest = std::int64_t{1} << 30;
        score.alibi_diagonal =
            static_cast<int>(std::clamp(diagonal_of(problem), -farthest, farthest));
    }
}

// The rest of what those that take packed batches have alike.
template <class Params>
void set_problem(const Launching& launching, Params& params) {
    const fa_tune_problem& problem = launching.call.problem;
    params.lse = launching.address<float>(FA_TUNE_TENSOR_LSE);
    params.heads = static_cast<int>(problem.heads);
    params.heads_per_kv = static_cast<int>(problem.heads / problem.kv_heads);
    params.seq_len_q = static_cast<int>(rows_of(problem));
    params.seq_len_kv = static_cast<int>(keys_of(problem));
    set_scores(launching, params);
    static_assert(sizeof(*params.packed.members) == kMemberBytes);
    if (problem.packed != 0) {
        params.packed = {
            static_cast<int>(problem.batch),
            0,
            launching.address<const int>(FA_TUNE_TENSOR_CU_SEQLENS_Q),
            launching.address<const int>(FA_TUNE_TENSOR_CU_SEQLENS_KV),
            launching.address<const int>(FA_TUNE_TENSOR_USED_Q),
            launching.address<const int>(FA_TUNE_TENSOR_USED_KV),
            static_cast<decltype(params.packed.members)>(launching.call.tensors.workspace)};
    }
}

// A kernel's TensorStrides, which count two bytes where elements have one.
template <class Strides>
Strides strides_of(const Launching& launching, fa_tune_tensor_role role) {
    const fa_tune_tensor& tensor = launching.tensor(role);
    if (element_of(launching.call.problem, role).size_bytes > 1) {
        return {tensor.batch_stride, tensor.seq_stride, tensor.head_stride};
    }
    return {tensor.batch_stride / 2, tensor.seq_stride / 2, tensor.head_stride / 2};
}

// Q, K, V and O of kernels without tensor maps.
template <class Strides, class Params>
void set_operands(const Launching& launching, Params& params) {
    params.q = launching.address<const unsigned short>(FA_TUNE_TENSOR_Q);
    params.k = launching.address<const unsigned short>(FA_TUNE_TENSOR_K);
    params.v = launching.address<const unsigned short>(FA_TUNE_TENSOR_V);
    params.o = launching.address<unsigned short>(FA_TUNE_TENSOR_O);
    params.q_strides = strides_of<Strides>(launching, FA_TUNE_TENSOR_Q);
    params.k_strides = strides_of<Strides>(launching, FA_TUNE_TENSOR_K);
    params.v_strides = strides_of<Strides>(launching, FA_TUNE_TENSOR_V);
    params.o_strides = strides_of<Strides>(launching, FA_TUNE_TENSOR_O);
}

}  // namespace fa_tune::core
