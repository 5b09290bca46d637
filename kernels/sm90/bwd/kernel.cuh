// Gradients of K and V, and in one pass those of Q, with wgmma and TMA.
//
//     warpgroup 0       producer.cuh   one thread loads
//     warpgroups 1, 2   consumer.cuh   64 keys of a tile each
//
// With clusters the grid has one for each tile (cluster_share.cuh).
//
// One pass is three launches: prepare.cuh, this, finish.cuh.  Two passes are two: dq_kernel.cuh,
// this.
#pragma once

#include "ptx/griddepcontrol.cuh"
#include "ptx/setmaxnreg.cuh"
#include "sm90/bwd/constraints.cuh"
#include "sm90/bwd/consumer.cuh"
#include "sm90/bwd/producer.cuh"

namespace fa_tune::sm90::backward {

// Registers per thread of the producer's warpgroup and of the consumers'.
constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;

template <Sm90BackwardConfig CFG>
__device__ __forceinline__ void initialise_barriers(const SharedAddress<CFG>& smem) {
    if (smem.base % 1024 != 0) __trap();  // the swizzle counts rows from there
    ptx::mbarrier_init(smem.k_full(), 1);
    ptx::mbarrier_init(smem.v_full(), 1);
    ptx::mbarrier_init(smem.k_empty(), kConsumerWarps);
    ptx::mbarrier_init(smem.v_empty(), kConsumerWarps);
    for (int i = 0; i < CFG.q_stages; ++i) {
        ptx::mbarrier_init(smem.q_full(i), 1);
        ptx::mbarrier_init(smem.q_empty(i), kConsumerWarps);
    }
    for (int i = 0; i < SharedMemory<CFG>::kDoStages; ++i) {
        ptx::mbarrier_init(smem.do_full(i), 1);
        ptx::mbarrier_init(smem.do_empty(i), kConsumerWarps);
    }
    for (int i = 0; i < 2; ++i) {
        ptx::mbarrier_init(smem.ds_full(i), kConsumerWarps);
        ptx::mbarrier_init(smem.ds_empty(i), kConsumerWarps);
    }
    smem.tiles().initialise();
    ptx::fence_mbarrier_init();
}

// Boxes of B_r rows of Q and dO, of 64 of K, V, dK and dV.
template <Sm90BackwardConfig CFG, WorkloadTraits TRAITS>
__global__ void __launch_bounds__(384, 1)
    sm90_backward_kernel(const __grid_constant__ ptx::TensorMap q_map,
                         const __grid_constant__ ptx::TensorMap k_map,
                         const __grid_constant__ ptx::TensorMap v_map,
                         const __grid_constant__ ptx::TensorMap do_map,
                         const __grid_constant__ ptx::TensorMap dk_map,
                         const __grid_constant__ ptx::TensorMap dv_map,
                         const __grid_constant__ BackwardParams params) {
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    constexpr Constraints<CFG, TRAITS> kConstraints{};
    (void)kConstraints;
    const SharedAddress<CFG> smem{static_cast<unsigned>(__cvta_generic_to_shared(shared_memory))};
    // Broadcast, so that the compiler knows it to be the same in all lanes.
    const int warp = __shfl_sync(kAllLanes, threadIdx.x / 32, 0);
    if (threadIdx.x == 0) initialise_barriers<CFG>(smem);
    const auto first =
        TileOrder<TRAITS.packed>::of_keys(params, CFG.B_c).decode(blockIdx.x / CFG.cluster);
    ptx::griddepcontrol_launch_dependents();
    ptx::griddepcontrol_wait();
    if (!CFG.dynamic && first.is_empty()) return;
    __syncthreads();
    if (warp < 4) {
        ptx::setmaxnreg_dec<kProducerRegisters>();
        if (warp == 0 && ptx::elect_sync()) {
            Producer<CFG, TRAITS>{params, q_map, k_map, v_map, do_map, smem}.run(first);
        }
        if constexpr (CFG.cluster > 1) {
            meet_cluster();
            meet_cluster();
        }
    } else {
        ptx::setmaxnreg_inc<kConsumerRegisters>();
        // The assembler serialises products of which a branch has to be taken first.
        constexpr int kColumns = CFG.padded_d() < 64 ? CFG.padded_d() : 64;
        constexpr int kLastColumns = CFG.padded_d() % 64 == 0 ? 64 : CFG.padded_d() % 64;
        if (kLastColumns == kColumns || warp < 8) {
            Consumer<CFG, TRAITS, kColumns>(params, dk_map, dv_map, smem, warp / 4 - 1).run(first);
        } else {
            Consumer<CFG, TRAITS, kLastColumns>(params, dk_map, dv_map, smem, 1).run(first);
        }
    }
}

}  // namespace fa_tune::sm90::backward
