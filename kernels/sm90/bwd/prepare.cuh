// The first launch of one pass; see common/backward/prepare.cuh.
#pragma once

#include "common/backward/prepare.cuh"
#include "ptx/griddepcontrol.cuh"
#include "sm90/bwd/constraints.cuh"

namespace fa_tune::sm90::backward {

// With few loads each, which keeps most of them under way (benchmarks/backward_h200.md).
constexpr int kPrepareThreads = 1024;

template <Sm90BackwardConfig CFG, WorkloadTraits TRAITS>
__global__ void __launch_bounds__(kPrepareThreads)
    sm90_backward_prepare(const __grid_constant__ BackwardParams p) {
    ptx::griddepcontrol_launch_dependents();
    prepare_rows<kPrepareThreads, CFG.dtype, TRAITS, CFG.d_head, CFG.padded_d()>(p);
}

}  // namespace fa_tune::sm90::backward
