// Gradients of K and V of wide heads, as the second of two passes, with wgmma and TMA.
//
//     warpgroup 0       wide_producer.cuh   one thread loads
//     warpgroups 1, 2   wide_consumer.cuh   dV and dK of 64 keys, of two halves of a tile in turn
#pragma once

#include "ptx/griddepcontrol.cuh"
#include "ptx/setmaxnreg.cuh"
#include "sm90/bwd/constraints.cuh"
#include "sm90/bwd/kernel.cuh"
#include "sm90/bwd/wide_consumer.cuh"
#include "sm90/bwd/wide_producer.cuh"

namespace fa_tune::sm90::backward {

template <Sm90BackwardConfig CFG>
__device__ __forceinline__ void initialise_barriers(const WideSharedAddress<CFG>& smem) {
    using Layout = WideSharedMemory<CFG>;
    if (smem.base % 1024 != 0) __trap();  // the swizzle counts rows from there
    ptx::mbarrier_init(smem.k_full(), 1);
    ptx::mbarrier_init(smem.v_full(), 1);
    ptx::mbarrier_init(smem.k_empty(), 1);
    ptx::mbarrier_init(smem.v_empty(), 1);
    for (int i = 0; i < Layout::kQSlots; ++i) {
        ptx::mbarrier_init(smem.q_full(i), 1);
        ptx::mbarrier_init(smem.q_empty(i), kConsumerWarps);
    }
    for (int i = 0; i < Layout::kDoSlots; ++i) {
        ptx::mbarrier_init(smem.do_full(i), 1);
        ptx::mbarrier_init(smem.do_empty(i), kConsumerWarps);
    }
    ptx::fence_mbarrier_init();
}

// Boxes of 64 rows.
template <Sm90BackwardConfig CFG, WorkloadTraits TRAITS>
__global__ void __launch_bounds__(384, 1)
    sm90_backward_wide(const __grid_constant__ ptx::TensorMap q_map,
                       const __grid_constant__ ptx::TensorMap k_map,
                       const __grid_constant__ ptx::TensorMap v_map,
                       const __grid_constant__ ptx::TensorMap do_map,
                       const __grid_constant__ ptx::TensorMap dk_map,
                       const __grid_constant__ ptx::TensorMap dv_map,
                       const __grid_constant__ BackwardParams params) {
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    constexpr Constraints<CFG, TRAITS> kConstraints{};
    (void)kConstraints;
    const WideSharedAddress<CFG> smem{
        static_cast<unsigned>(__cvta_generic_to_shared(shared_memory))};
    // Broadcast, so that the compiler knows it to be the same in all lanes.
    const int warp = __shfl_sync(kAllLanes, threadIdx.x / 32, 0);
    if (threadIdx.x == 0) initialise_barriers<CFG>(smem);
    const auto tile =
        TileOrder<TRAITS.packed>::of_keys(params, CFG.B_c).decode(blockIdx.x / CFG.cluster);
    ptx::griddepcontrol_launch_dependents();
    ptx::griddepcontrol_wait();
    if (tile.is_empty()) return;
    __syncthreads();
    if (warp < 4) {
        ptx::setmaxnreg_dec<kProducerRegisters>();
        if (warp == 0 && ptx::elect_sync()) {
            WideProducer<CFG, TRAITS>{params, q_map, k_map, v_map, do_map, smem}.run(tile);
        }
        if constexpr (CFG.cluster > 1) {
            meet_cluster();
            meet_cluster();
        }
    } else {
        ptx::setmaxnreg_inc<kConsumerRegisters>();
        if (warp < 8) {
            WideConsumer<CFG, TRAITS, true>(params, dv_map, smem).run(tile);
        } else {
            WideConsumer<CFG, TRAITS, false>(params, dk_map, smem).run(tile);
        }
    }
}

}  // namespace fa_tune::sm90::backward
