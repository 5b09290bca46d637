// FlashAttention forward with wgmma and TMA.
//
//     warpgroup 0        producer.cuh   one thread loads Q, K and V
//     warpgroups 1 ..    consumer.cuh   64 query rows each: products, softmax, O
//
// They share the rings of K and V in shared memory and meet only at barriers.
#pragma once

#include "ptx/setmaxnreg.cuh"
#include "sm90/fwd/constraints.cuh"
#include "sm90/fwd/consumer.cuh"
#include "sm90/fwd/packed_beginning.cuh"
#include "sm90/fwd/producer.cuh"

namespace fa_tune::sm90 {

// Registers per thread after the warpgroups have shared them out; what they entered with is
// 65536 / threads, in steps of 8.  With one consumer and one CTA a thread may have all it can
// address.
template <Sm90Config CFG>
struct RegisterShares {
    static constexpr bool kSplit = CFG.mma_warpgroups * CFG.min_ctas_per_sm > 1;
    static constexpr int kEntry =
        65536 / (128 * (1 + CFG.mma_warpgroups) * CFG.min_ctas_per_sm) / 8 * 8;
    // Multiples of 8 that leave the consumers multiples of 8.
    static constexpr int kProducer = CFG.mma_warpgroups == 3 ? 32 : 24;
    static constexpr int kLeft =
        ((1 + CFG.mma_warpgroups) * kEntry - kProducer) / CFG.mma_warpgroups / 8 * 8;
    static constexpr int kConsumer = kLeft < 240 ? kLeft : 240;
};

template <Sm90Config CFG>
__device__ __forceinline__ void initialise_barriers(const SharedAddress<CFG>& smem) {
    if (smem.base % 1024 != 0) __trap();  // the swizzle counts rows from there
    for (int i = 0; i < CFG.q_stages * CFG.mma_warpgroups; ++i) {
        ptx::mbarrier_init(smem.q_full(i), 1);
        ptx::mbarrier_init(smem.q_empty(i), CFG.o_apart() ? 4 : 1);
    }
    constexpr int kConsumerWarps = 4 * CFG.mma_warpgroups;
    for (int i = 0; i < CFG.stages; ++i) {
        ptx::mbarrier_init(smem.k_full(i), 1);
        ptx::mbarrier_init(smem.k_empty(i), kConsumerWarps);
    }
    for (int i = 0; i < CFG.stages; ++i) {
        ptx::mbarrier_init(smem.v_full(i), 1);
        ptx::mbarrier_init(smem.v_empty(i), kConsumerWarps);
    }
    for (int i = 0; i < SharedMemory<CFG>::kWorkTileSlots; ++i) {
        ptx::mbarrier_init(smem.work_tile_full(i), 1);
        ptx::mbarrier_init(smem.work_tile_empty(i), WorkTileSlots<CFG>::kReaders);
    }
    ptx::fence_mbarrier_init();
}

// By the loading warpgroup: warp 1 has initialised the barriers then.
template <Sm90Config CFG>
__device__ __forceinline__ void prepare(const SharedAddress<CFG>& smem, const ptx::TensorMap& q_map,
                                        const ptx::TensorMap& k_map, const ptx::TensorMap& v_map,
                                        const ptx::TensorMap& o_map) {
    if (threadIdx.x == 32) initialise_barriers<CFG>(smem);
    if (threadIdx.x == 0) {
        ptx::prefetch_tensormap(q_map);
        ptx::prefetch_tensormap(k_map);
        ptx::prefetch_tensormap(v_map);
        ptx::prefetch_tensormap(o_map);
    }
}

// Block: 128 (1 + mma_warpgroups) threads.
template <Sm90Config CFG, WorkloadTraits TRAITS>
__global__ void __launch_bounds__(128 * (1 + CFG.mma_warpgroups), CFG.min_ctas_per_sm)
    __cluster_dims__(CFG.splits, 1, 1)
        sm90_forward_kernel(const __grid_constant__ ptx::TensorMap q_map,
                            const __grid_constant__ ptx::TensorMap k_map,
                            const __grid_constant__ ptx::TensorMap v_map,
                            const __grid_constant__ ptx::TensorMap o_map,
                            const __grid_constant__ ForwardParams params) {
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    constexpr Constraints<CFG> kConstraints{};
    (void)kConstraints;
    const SharedAddress<CFG> smem{static_cast<unsigned>(__cvta_generic_to_shared(shared_memory))};
    // Broadcast, so that the compiler knows it to be the same in all lanes.
    const int warp = __shfl_sync(kAllLanes, threadIdx.x / 32, 0);
    using Order = TileOrder<CFG, TRAITS>;
    using Registers = RegisterShares<CFG>;
    if constexpr (TRAITS.packed) {
        // Consumers begin at once with the lengths.
        if (warp < 4) {
            if constexpr (Registers::kSplit) ptx::setmaxnreg_dec<Registers::kProducer>();
            prepare<CFG>(smem, q_map, k_map, v_map, o_map);
            if (warp == 1) PackedBeginning<CFG, TRAITS>::tell_initialised();
            if (warp != 0) return;
            const PackedBeginning<CFG, TRAITS> beginning{params, smem};
            Sequence<true> sequence;
            WorkTile first = beginning.guess(sequence);
            beginning.await_consumers(first, sequence);
            if (ptx::elect_sync()) {
                Producer<CFG, TRAITS>{params, q_map, k_map, v_map, smem}.run(
                    first, sequence, beginning.equals.possible);
            }
        } else {
            if constexpr (Registers::kSplit) ptx::setmaxnreg_inc<Registers::kConsumer>();
            const OwnLengths lengths(params.packed);
            const PackedBeginning<CFG, TRAITS> beginning{params, smem};
            beginning.order();
            Sequence<true> sequence;
            WorkTile first = beginning.guess(sequence);
            beginning.begin(first, sequence);
            beginning.settle(lengths, first, sequence);
            if (first.number < 0) return;  // there are fewer tiles than CTAs
            using Slots = WorkTileSlots<CFG>;
            Consumer<CFG, TRAITS> consumer(params, o_map, smem, warp / 4 - 1);
            const WorkTile told = Slots::template packed<TRAITS>(first, sequence);
            consumer.run(Slots::template unpacked<TRAITS>(params, told, consumer.next_sequence));
        }
    } else {
        prepare<CFG>(smem, q_map, k_map, v_map, o_map);
        // Its divisions take as long as the barriers.
        const WorkTile first = Order{params}.decode(blockIdx.x / CFG.splits);
        __syncthreads();
        if (warp < 4) {
            if constexpr (Registers::kSplit) ptx::setmaxnreg_dec<Registers::kProducer>();
            if (warp == 0 && ptx::elect_sync()) {
                Producer<CFG, TRAITS> producer{params, q_map, k_map, v_map, smem};
                if constexpr (CFG.splits > 1) {
                    producer.run_share(first);
                } else {
                    producer.run(first);
                }
            }
            if constexpr (CFG.splits > 1) {
                meet_cluster();
                meet_cluster();
            }
        } else {
            if constexpr (Registers::kSplit) ptx::setmaxnreg_inc<Registers::kConsumer>();
            Consumer<CFG, TRAITS> consumer(params, o_map, smem, warp / 4 - 1);
            consumer.run(first);
        }
    }
}

}  // namespace fa_tune::sm90
