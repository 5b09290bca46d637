// FlashAttention forward with wgmma and TMA.  Warpgroup 0 is the producer (producer.cuh), the
// others are consumers (consumer.cuh); they share the rings of K and V in shared memory and
// meet only at barriers.
#pragma once

#include "sm90/constraints.cuh"
#include "sm90/consumer.cuh"
#include "sm90/producer.cuh"

// Registers per thread after the warpgroups have shared them out; what they entered with is
// 65536 / threads, in steps of 8.  With one consumer and one CTA a thread may have all it can
// address.
template <Sm90Config CFG>
struct RegisterShares {
    static constexpr bool kSplit = CFG.consumers * CFG.ctas > 1;
    static constexpr int kEntry = 65536 / (128 * (1 + CFG.consumers) * CFG.ctas) / 8 * 8;
    // Multiples of 8 that leave the consumers multiples of 8; a cluster's producer has more to do.
    static constexpr int kProducer = CFG.consumers == 3 ? (CFG.cluster > 1 ? 56 : 32)
                                     : CFG.cluster > 1  ? 40
                                                        : 24;
    static constexpr int kLeft = ((1 + CFG.consumers) * kEntry - kProducer) / CFG.consumers / 8 * 8;
    static constexpr int kConsumer = kLeft < 240 ? kLeft : 240;
};

template <Sm90Config CFG>
__device__ __forceinline__ void initialise_barriers(unsigned smem) {
    using Shared = SharedMemory<CFG>;
    for (int i = 0; i < CFG.q_stages * CFG.consumers; ++i) {
        ptx::mbarrier_init(smem + Shared::kQFull + 8 * i, 1);
        ptx::mbarrier_init(smem + Shared::kQEmpty + 8 * i, 1);
    }
    constexpr int kConsumerWarps = 4 * CFG.consumers * CFG.cluster;
    for (int i = 0; i < CFG.stages; ++i) {
        ptx::mbarrier_init(smem + Shared::kKFull + 8 * i, 1);
        ptx::mbarrier_init(smem + Shared::kKEmpty + 8 * i, kConsumerWarps);
    }
    for (int i = 0; i < Shared::kVStages; ++i) {
        ptx::mbarrier_init(smem + Shared::kVFull + 8 * i, 1);
        ptx::mbarrier_init(smem + Shared::kVEmpty + 8 * i, kConsumerWarps);
    }
    for (int i = 0; i < Shared::kTileSlots; ++i) {
        ptx::mbarrier_init(smem + Shared::kTileFull + 8 * i, 1);
        ptx::mbarrier_init(smem + Shared::kTileEmpty + 8 * i, TileSlots<CFG>::kReaders);
    }
    ptx::fence_mbarrier_init();
}

// All threads of a cluster wait for each other.
template <Sm90Config CFG>
__device__ __forceinline__ void meet() {
    if constexpr (CFG.cluster > 1) {
        ptx::cluster_sync();
    } else {
        __syncthreads();
    }
}

// Block: 128 (1 + consumers) threads.
template <Sm90Config CFG, WorkloadTraits TRAITS>
__global__ void __launch_bounds__(128 * (1 + CFG.consumers), CFG.ctas)
    __cluster_dims__(CFG.cluster, 1, 1)
        sm90_forward_kernel(const __grid_constant__ ptx::TensorMap q_map,
                            const __grid_constant__ ptx::TensorMap k_map,
                            const __grid_constant__ ptx::TensorMap v_map,
                            const __grid_constant__ ptx::TensorMap o_map,
                            const __grid_constant__ ForwardParams params) {
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    constexpr Constraints<CFG> kConstraints{};
    (void)kConstraints;
    const unsigned smem = static_cast<unsigned>(__cvta_generic_to_shared(shared_memory));
    // Broadcast, so that the compiler knows it to be the same in all lanes.
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
    if (threadIdx.x == 32) {
        if (smem % 1024 != 0) __trap();  // the swizzle counts rows from there
        initialise_barriers<CFG>(smem);
    }
    if (threadIdx.x == 0) {
        ptx::prefetch_tensor_map(q_map);
        ptx::prefetch_tensor_map(k_map);
        ptx::prefetch_tensor_map(v_map);
        ptx::prefetch_tensor_map(o_map);
    }
    // Its divisions take as long as the barriers.
    const Tile first = TileOrder<CFG, TRAITS>{params}.first();
    meet<CFG>();
    using Registers = RegisterShares<CFG>;
    if (warp < 4) {
        if constexpr (Registers::kSplit) ptx::setmaxnreg_dec<Registers::kProducer>();
        if (warp == 0 && ptx::elect_one()) {
            Producer<CFG, TRAITS> producer{params, q_map, k_map, v_map, smem};
            producer.run(first);
        }
    } else {
        if constexpr (Registers::kSplit) ptx::setmaxnreg_inc<Registers::kConsumer>();
        Consumer<CFG, TRAITS> consumer(params, o_map, smem, warp / 4 - 1);
        consumer.run(first);
    }
    // Until then another CTA may still write to this one's shared memory.
    if constexpr (CFG.cluster > 1) ptx::cluster_sync();
}
