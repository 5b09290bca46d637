// Gradients of Q, as the first of two passes, with wgmma and TMA.
//
//     warpgroup 0       dq_producer.cuh   one thread loads
//     warpgroups 1, 2   dq_consumer.cuh   64 queries of a tile each
#pragma once

#include "ptx/griddepcontrol.cuh"
#include "ptx/setmaxnreg.cuh"
#include "sm90/bwd/constraints.cuh"
#include "sm90/bwd/dq_consumer.cuh"
#include "sm90/bwd/kernel.cuh"

namespace fa_tune::sm90::backward {

template <Sm90BackwardConfig CFG>
__device__ __forceinline__ void initialise_barriers(const DqSharedAddress<CFG>& smem) {
    using Layout = DqSharedMemory<CFG>;
    if (smem.base % 1024 != 0) __trap();  // the swizzle counts rows from there
    for (int i = 0; i < 2; ++i) {
        ptx::mbarrier_init(smem.q_full(i), 1);
        ptx::mbarrier_init(smem.q_empty(i), kConsumerWarps / 2);
        ptx::mbarrier_init(smem.do_full(i), 1);
        ptx::mbarrier_init(smem.do_empty(i), kConsumerWarps / 2);
    }
    for (int i = 0; i < Layout::kKStages; ++i) {
        ptx::mbarrier_init(smem.k_full(i), 1);
        ptx::mbarrier_init(smem.k_empty(i), kConsumerWarps);
    }
    for (int i = 0; i < Layout::kVStages; ++i) {
        ptx::mbarrier_init(smem.v_full(i), 1);
        ptx::mbarrier_init(smem.v_empty(i), kConsumerWarps);
    }
    smem.tiles().initialise();
    ptx::fence_mbarrier_init();
}

// Boxes of 64 rows of Q, dO and dQ, of dq_keys rows of K and V.
template <Sm90BackwardConfig CFG, WorkloadTraits TRAITS>
__global__ void __launch_bounds__(384, 1)
    sm90_backward_dq(const __grid_constant__ ptx::TensorMap q_map,
                     const __grid_constant__ ptx::TensorMap k_map,
                     const __grid_constant__ ptx::TensorMap v_map,
                     const __grid_constant__ ptx::TensorMap do_map,
                     const __grid_constant__ ptx::TensorMap dq_map,
                     const __grid_constant__ BackwardParams params) {
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    constexpr Constraints<CFG, TRAITS> kConstraints{};
    (void)kConstraints;
    const DqSharedAddress<CFG> smem{static_cast<unsigned>(__cvta_generic_to_shared(shared_memory))};
    const int warp = __shfl_sync(kAllLanes, threadIdx.x / 32, 0);
    if (threadIdx.x == 0) initialise_barriers<CFG>(smem);
    const auto first =
        TileOrder<TRAITS.packed>::of_queries(params, kDqRows).decode(blockIdx.x / CFG.dq_cluster);
    ptx::griddepcontrol_launch_dependents();
    ptx::griddepcontrol_wait();
    if (!CFG.dynamic && first.is_empty()) return;
    __syncthreads();
    if (warp < 4) {
        ptx::setmaxnreg_dec<kProducerRegisters>();
        if (warp == 0 && ptx::elect_sync()) {
            DqProducer<CFG, TRAITS>{params, q_map, k_map, v_map, do_map, smem}.run(first);
        }
        if constexpr (CFG.dq_cluster > 1) {
            meet_cluster();
            meet_cluster();
        }
    } else {
        ptx::setmaxnreg_inc<kConsumerRegisters>();
        DqConsumer<CFG, TRAITS>(params, dq_map, smem, warp / 4 - 1).run(first);
    }
}

}  // namespace fa_tune::sm90::backward
