// Launches of the backward pass: its parameters and the parts of its workspace.
#include <algorithm>
#include <cstdint>

#include "common/backward/params.cuh"
#include "params/forward.h"
#include "problem.h"

namespace fa_tune::core {

namespace {

constexpr std::int64_t kPaddedTo = 128;  // rows of a head in the workspace
constexpr std::int64_t kColumns = 32;    // of sums of dQ there: a multiple
constexpr double kL2Share = 0.6;         // for the heads at work
constexpr std::int64_t kMaxGroupedHeads = 256;
constexpr std::int64_t kTileKeys = 128;

std::int64_t padded_rows(const fa_tune_problem& problem) {
    return blocks_of(problem, rows_of(problem), kPaddedTo) * kPaddedTo;
}

std::int64_t rows_of_all(const fa_tune_problem& problem) {
    return batch_of(problem) * problem.heads * padded_rows(problem);
}

std::int64_t kv_heads_of_all(const fa_tune_problem& problem) {
    return batch_of(problem) * problem.kv_heads;
}

std::int64_t workspace(const fa_tune_launch_plan& plan, const fa_tune_problem& problem) {
    std::int64_t words = 2 * rows_of_all(problem);  // statistics
    if (plan.sum_rows > 0) {
        const std::int64_t groups = (problem.d_head + kColumns - 1) / kColumns;
        words += rows_of_all(problem) * groups * kColumns;
    }
    return words * static_cast<std::int64_t>(sizeof(float));
}

// Neighbouring heads of K and V whose tiles are handed out together: with a mask, where tiles
// differ in length, those whose queries' Q, dO and sums of dQ fit in their share of L2, but so many
// that every group has a tile for nearly each multiprocessor: the last group's longest tiles come
// late.  So would a small last group's: all have the same size.  Without a mask one.
int l2_head_group(const Launching& launching) {
    const fa_tune_problem& problem = launching.call.problem;
    if (!is_causal(problem) && problem.window == FA_TUNE_WINDOW_NONE) return 1;
    const std::int64_t bytes = 2 * element_of(problem, FA_TUNE_TENSOR_Q).size_bytes +
                               (launching.plan.sum_rows > 0 ? 4 : 0);
    const std::int64_t of_head =
        problem.heads / problem.kv_heads * padded_rows(problem) * problem.d_head * bytes;
    const auto room =
        static_cast<std::int64_t>(kL2Share * static_cast<double>(launching.call.l2_bytes));
    const std::int64_t tiles = (keys_of(problem) + kTileKeys - 1) / kTileKeys;
    const std::int64_t at_work = launching.call.multiprocessors * 9 / 10;
    const std::int64_t heads = kv_heads_of_all(problem);
    const std::int64_t least = std::min((at_work + tiles - 1) / tiles, heads);
    std::int64_t group = std::clamp(room / of_head, std::int64_t{1}, heads);
    while (heads % group != 0) --group;
    if (group < least) {
        group = least;
        while (heads % group != 0) ++group;
    }
    return static_cast<int>(std::min(group, kMaxGroupedHeads));
}

void fill(const Launching& launching, BackwardParams& params) {
    const fa_tune_problem& problem = launching.call.problem;
    params.o = launching.address<const unsigned short>(FA_TUNE_TENSOR_O);
    params.d_o = launching.address<const unsigned short>(FA_TUNE_TENSOR_DO);
    params.dq = launching.address<unsigned short>(FA_TUNE_TENSOR_DQ);
    params.o_strides = strides_of<TensorStrides>(launching, FA_TUNE_TENSOR_O);
    params.do_strides = strides_of<TensorStrides>(launching, FA_TUNE_TENSOR_DO);
    params.dq_strides = strides_of<TensorStrides>(launching, FA_TUNE_TENSOR_DQ);
    params.q = launching.address<const unsigned short>(FA_TUNE_TENSOR_Q);
    params.k = launching.address<const unsigned short>(FA_TUNE_TENSOR_K);
    params.v = launching.address<const unsigned short>(FA_TUNE_TENSOR_V);
    params.dk = launching.address<unsigned short>(FA_TUNE_TENSOR_DK);
    params.dv = launching.address<unsigned short>(FA_TUNE_TENSOR_DV);
    params.q_strides = strides_of<TensorStrides>(launching, FA_TUNE_TENSOR_Q);
    params.k_strides = strides_of<TensorStrides>(launching, FA_TUNE_TENSOR_K);
    params.v_strides = strides_of<TensorStrides>(launching, FA_TUNE_TENSOR_V);
    params.dk_strides = strides_of<TensorStrides>(launching, FA_TUNE_TENSOR_DK);
    params.dv_strides = strides_of<TensorStrides>(launching, FA_TUNE_TENSOR_DV);
    set_problem(launching, params);
    params.grad_lse = launching.address<const float>(FA_TUNE_TENSOR_DLSE);
    params.packed.members = nullptr;  // no list is made
    params.lse2 = static_cast<float*>(launching.call.tensors.workspace);
    if (params.lse2 != nullptr) {
        params.delta = params.lse2 + rows_of_all(problem);
        if (launching.plan.sum_rows > 0) {
            params.dq_sum = params.delta + rows_of_all(problem);
        }
    }
    params.batch = static_cast<int>(batch_of(problem));
    params.padded_q = static_cast<int>(padded_rows(problem));
    params.l2_head_group = l2_head_group(launching);
}

constexpr MapRoles kKeyMaps{6,
                            {FA_TUNE_TENSOR_Q, FA_TUNE_TENSOR_K, FA_TUNE_TENSOR_V,
                             FA_TUNE_TENSOR_DO, FA_TUNE_TENSOR_DK, FA_TUNE_TENSOR_DV}};
constexpr MapRoles kQueryMaps{
    5,
    {FA_TUNE_TENSOR_Q, FA_TUNE_TENSOR_K, FA_TUNE_TENSOR_V, FA_TUNE_TENSOR_DO, FA_TUNE_TENSOR_DQ}};

}  // namespace

}  // namespace fa_tune::core

// Of the passes over keys and over queries with tensor maps; the first also serves all others.
FA_TUNE_PARAMS_LAYOUT_WITH(backward, fa_tune::BackwardParams, false, fa_tune::core::fill,
                           fa_tune::core::kKeyMaps, fa_tune::core::workspace);
FA_TUNE_PARAMS_LAYOUT_WITH(backward_dq, fa_tune::BackwardParams, false, fa_tune::core::fill,
                           fa_tune::core::kQueryMaps, fa_tune::core::workspace);
