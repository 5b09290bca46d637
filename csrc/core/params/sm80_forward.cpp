#include "params/forward.h"
#include "sm80/fwd/params.cuh"

namespace fa_tune::core {

namespace {

constexpr double kForwardL2Share = 0.5;  // of the heads at work

void fill(const Launching& launching, sm80::ForwardParams& params) {
    set_operands<sm80::TensorStrides>(launching, params);
    set_problem(launching, params);
    params.batch = static_cast<int>(batch_of(launching.call.problem));
    if (launching.plan.grid != FA_TUNE_GRID_BLOCKS_HEADS_BATCH) {
        params.l2_head_group = l2_head_group(launching.call, kForwardL2Share);
    }
}

}  // namespace

}  // namespace fa_tune::core

FA_TUNE_PARAMS_LAYOUT(sm80_forward, fa_tune::sm80::ForwardParams, false, fa_tune::core::fill);
