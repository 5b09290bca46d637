#include <algorithm>
#include <cstdint>

#include "decode/params.cuh"
#include "params/forward.h"

namespace fa_tune::core {

namespace {

// Of 0, by which nothing is divided, zeros.
decode::Divisor divisor_of(std::int64_t number) {
    if (number == 0) return {};
    int shift = 0;
    while (std::int64_t{1} << shift < number) ++shift;
    const std::uint64_t rounded_up = (std::uint64_t{1} << (31 + shift)) + number - 1;
    return {static_cast<unsigned>(rounded_up / number), shift};
}

// Where the device alone knows the keys of a sequence: less keys - seq_len_q, which the kernel
// adds.
void set_diagonals(const fa_tune_problem& problem, decode::DecodeParams& params) {
    const auto within = [](std::int64_t keys) {
        return static_cast<int>(std::min(keys, std::int64_t{1} << 30));
    };
    const bool left = (problem.window & FA_TUNE_WINDOW_LEFT) != 0;
    params.diagonal = is_causal(problem) ? 0 : within(problem.window_right);
    params.score.first_diagonal = -within(left ? problem.window_left : problem.seq_len_kv);
}

void set_cache(const Launching& launching, decode::DecodeParams& params) {
    const fa_tune_tensors& tensors = launching.call.tensors;
    params.cache = {launching.address<const int>(FA_TUNE_TENSOR_CACHE_SEQLENS),
                    launching.address<const int>(FA_TUNE_TENSOR_PAGE_TABLE),
                    tensors.added,
                    tensors.page_size,
                    launching.tensor(FA_TUNE_TENSOR_PAGE_TABLE).batch_stride,
                    launching.address<const unsigned short>(FA_TUNE_TENSOR_NEW_K),
                    launching.address<const unsigned short>(FA_TUNE_TENSOR_NEW_V),
                    strides_of<decode::TensorStrides>(launching, FA_TUNE_TENSOR_NEW_K),
                    strides_of<decode::TensorStrides>(launching, FA_TUNE_TENSOR_NEW_V)};
    const fa_tune_tensor &k = launching.tensor(FA_TUNE_TENSOR_K_SCALE),
                         &v = launching.tensor(FA_TUNE_TENSOR_V_SCALE);
    const fa_tune_tensor& scale = k.address != nullptr ? k : v;
    params.scales = {static_cast<const float*>(k.address), static_cast<const float*>(v.address),
                     static_cast<int>(scale.batch_stride), static_cast<int>(scale.head_stride)};
}

void fill(const Launching& launching, decode::DecodeParams& params) {
    const fa_tune_problem& problem = launching.call.problem;
    const Shares& shares = launching.shares;
    set_operands<decode::TensorStrides>(launching, params);
    params.lse = launching.address<float>(FA_TUNE_TENSOR_LSE);
    params.parts = static_cast<float*>(launching.call.tensors.workspace);
    set_cache(launching, params);
    params.heads_per_kv = static_cast<int>(problem.heads / problem.kv_heads);
    params.kv_heads = static_cast<int>(problem.kv_heads);
    params.batch = static_cast<int>(problem.batch);
    params.seq_len_q = static_cast<int>(problem.seq_len_q);
    params.seq_len_kv = static_cast<int>(problem.seq_len_kv);
    params.row_tiles = static_cast<int>(shares.row_tiles);
    params.blocks = static_cast<int>(shares.blocks);
    params.pitch = static_cast<int>(shares.pitch);
    params.share = static_cast<int>(shares.share);
    params.ctas = static_cast<int>(shares.ctas);
    params.part_rows = static_cast<int>(shares.part_rows);
    const std::int64_t tiles = problem.kv_heads * shares.row_tiles;
    params.by = {divisor_of(params.heads_per_kv),
                 divisor_of(shares.row_tiles),
                 divisor_of(tiles),
                 divisor_of(shares.pitch),
                 divisor_of(tiles * shares.pitch),
                 divisor_of(shares.share),
                 divisor_of(params.cache.page_size)};
    set_scores(launching, params);
    if (params.cache.lengths != nullptr) set_diagonals(problem, params);
}

}  // namespace

}  // namespace fa_tune::core

FA_TUNE_PARAMS_LAYOUT(decode, fa_tune::decode::DecodeParams, true, fa_tune::core::fill);
