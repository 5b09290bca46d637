// The first launch of one pass; see common/backward/prepare.cuh.
#pragma once

#include "common/backward/prepare.cuh"
#include "ptx/griddepcontrol.cuh"
#include "sm90/bwd/constraints.cuh"
#include "sm90/bwd/query_shares.cuh"

namespace fa_tune::sm90::backward {

template <Sm90BackwardConfig CFG, WorkloadTraits TRAITS>
__global__ void __launch_bounds__(kPrepareThreads)
    sm90_backward_prepare(const __grid_constant__ BackwardParams p) {
    ptx::griddepcontrol_launch_dependents();
    if constexpr (CFG.idle_warps) {
        const auto shares = QueryShares::of<TRAITS.packed>(p, CFG.B_c);
        const int head = blockIdx.x * kPrepareThreads + threadIdx.x;
        if (head < p.heads / p.heads_per_kv * p.batch) p.prepared[head] = p.done[head] = 0;
        if (shares.tile_of(blockIdx.x) >= shares.distance) return;
    }
    prepare_rows<CFG.dtype, TRAITS, CFG.d_head, CFG.d_head>(p);
}

}  // namespace fa_tune::sm90::backward
