#include "params/layout.h"
#include "problem.h"
#include "toy/params.cuh"

namespace fa_tune::core {

static toy::Tensor tensor_of(const Launching& launching, fa_tune_tensor_role role) {
    const fa_tune_tensor& tensor = launching.tensor(role);
    return {tensor.address, tensor.batch_stride, tensor.seq_stride, tensor.head_stride};
}

static void fill(const Launching& launching, toy::BackwardParams& params) {
    const fa_tune_problem& problem = launching.call.problem;
    params.q = tensor_of(launching, FA_TUNE_TENSOR_Q);
    params.k = tensor_of(launching, FA_TUNE_TENSOR_K);
    params.v = tensor_of(launching, FA_TUNE_TENSOR_V);
    params.d_o = tensor_of(launching, FA_TUNE_TENSOR_DO);
    params.dq = tensor_of(launching, FA_TUNE_TENSOR_DQ);
    params.dk = tensor_of(launching, FA_TUNE_TENSOR_DK);
    params.dv = tensor_of(launching, FA_TUNE_TENSOR_DV);
    params.seq_len_q = static_cast<int>(problem.seq_len_q);
    params.seq_len_kv = static_cast<int>(problem.seq_len_kv);
    params.scale = static_cast<float>(scale_of(problem));
    params.wide_sums = problem.wide_sums != 0;
}

}  // namespace fa_tune::core

FA_TUNE_PARAMS_LAYOUT(toy_backward, fa_tune::toy::BackwardParams, false, fa_tune::core::fill);
