// Gradients with mma.sync and cp.async.
//
//     one pass     prepare    keys (dK, dV, and sums of dQ)    finish
//     two passes   prepare    queries (dQ)                     keys (dK, dV)
#pragma once

#include "common/backward/prepare.cuh"
#include "sm80/bwd/pass.cuh"

namespace fa_tune::sm80::backward {

constexpr int kPrepareThreads = 256;

template <Sm80BackwardConfig CFG, WorkloadTraits TRAITS>
__global__ void __launch_bounds__(kPrepareThreads)
    sm80_backward_prepare(const __grid_constant__ BackwardParams p) {
    constexpr int kSumColumns = CFG.two_pass ? 0 : CFG.d_head;
    prepare_rows<kPrepareThreads, CFG.dtype, TRAITS, CFG.d_v(), kSumColumns>(p);
}

template <Sm80BackwardConfig CFG, WorkloadTraits TRAITS>
__global__ void __launch_bounds__(32 * CFG.n_warps, CFG.ctas)
    sm80_backward_kernel(const __grid_constant__ BackwardParams p) {
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    Pass<CFG, TRAITS, Rows::KEYS>(p, static_cast<unsigned>(__cvta_generic_to_shared(shared_memory)))
        .run();
}

template <Sm80BackwardConfig CFG, WorkloadTraits TRAITS>
__global__ void __launch_bounds__(32 * CFG.n_warps, CFG.ctas)
    sm80_backward_dq(const __grid_constant__ BackwardParams p) {
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    Pass<CFG, TRAITS, Rows::QUERIES>(p,
                                     static_cast<unsigned>(__cvta_generic_to_shared(shared_memory)))
        .run();
}

}  // namespace fa_tune::sm80::backward
