// How a packed batch begins.  Lengths take a microsecond to come, so the first copies are those of
// equal sequences before it is known that they are:
//
//     consumers    lengths are read, compared .......  equal, or in order .......  first tile
//     producer     first copies of equal sequences ..  right, or taken back
//
// If the number of all rows says that the sequences cannot be equal, they are ordered at once.
//
// Who waits for whom, at named barriers that each have one place to wait at, which is what
// compute-sanitizer can follow:
//
//     warp 1       barriers initialised ..  INITIALISED  ..>  consumers
//                                           BEGIN  .......>   producer
//     consumers    members ordered .......  ORDERED  .....>   consumers
//                                           BEGIN  .......>   producer
//                  first tile found ......  FOUND  .......>   producer, where Q comes there
#pragma once

#include "sm90/fwd/scheduler.cuh"

namespace fa_tune::sm90 {

// By a thread of a warp that compares lengths: loads that are under way while more is computed.
struct OwnLengths {
    int index;                   // of the lane's sequence, or the number of all
    int first_query, first_key;  // of that sequence, or where the last one ends

    __device__ __forceinline__ explicit OwnLengths(const PackedBatch& batch)
        : index(min(static_cast<int>(threadIdx.x) % 32, batch.batch)),
          first_query(batch.cu_seqlens_q[index]),
          first_key(batch.cu_seqlens_kv[index]) {}
};

template <Sm90Config CFG, WorkloadTraits TRAITS>
struct PackedBeginning {
    using Order = TileOrder<CFG, TRAITS>;

    const ForwardParams& p;
    const SharedAddress<CFG> smem;
    const Equals equals = Order{p}.equals();

    // By the producer's warp and the consumers: if the sequences may be equal, the first tile.
    __device__ __forceinline__ WorkTile guess(Sequence<true>& sequence) const {
        WorkTile tile{-1, 0, 0, 0};
        if (equals.possible) tile = Order{p}.decode_equal(blockIdx.x, equals, sequence);
        return tile;
    }

    // Threads at the barriers.
    static constexpr int kConsumers = 128 * CFG.mma_warpgroups;
    static constexpr int kAtInitialised = kConsumers + 32;
    static constexpr int kAtBegin = kConsumers + 64;
    static constexpr int kAtFound = kConsumers + 32;

    // By warp 1.
    __device__ __forceinline__ static void tell_initialised() {
        __syncwarp();  // one lane did it
        ptx::bar_arrive(static_cast<int>(NamedBarrier::INITIALISED), kAtInitialised);
        ptx::bar_arrive(static_cast<int>(NamedBarrier::BEGIN), kAtBegin);
    }

    // By the consumers, if they cannot be.
    __device__ __forceinline__ void order() const {
        if (!equals.possible) order_members(false);
    }

    // Then, by the consumers.
    __device__ __forceinline__ void begin(WorkTile& tile, Sequence<true>& sequence) const {
        ptx::bar_sync(static_cast<int>(NamedBarrier::INITIALISED), kAtInitialised);
        ptx::bar_arrive(static_cast<int>(NamedBarrier::BEGIN), kAtBegin);
        find(tile, sequence);
        if constexpr (!Order::kOrdersInV) {
            ptx::bar_arrive(static_cast<int>(NamedBarrier::FOUND), kAtFound);
        }
    }

    // By the producer's warp.
    __device__ __forceinline__ void await_consumers(WorkTile& tile,
                                                    Sequence<true>& sequence) const {
        ptx::bar_sync(static_cast<int>(NamedBarrier::BEGIN), kAtBegin);
        find(tile, sequence);
        if constexpr (!Order::kOrdersInV) {
            ptx::bar_sync(static_cast<int>(NamedBarrier::FOUND), kAtFound);
        }
    }

    // By all consumers: the tile becomes the right one, and the producer may know whether it was.
    __device__ __forceinline__ void settle(const OwnLengths& lengths, WorkTile& tile,
                                           Sequence<true>& sequence) const {
        const bool right = !equals.possible || all_equal(lengths);
        if (!right) [[unlikely]] {
            order_members(tile.number >= 0);
            tile = Order{p}.found(smem, sequence);
        }
        if constexpr (Order::kGuesses) {
            if (threadIdx.x == OrderingWarpgroup::kFirst) {
                ptx::st_shared(smem.work_tile(0), right);
            }
        }
        __syncwarp();
        if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(smem.v_empty(0));
    }

  private:
    __device__ __forceinline__ void find(WorkTile& tile, Sequence<true>& sequence) const {
        if (!equals.possible) tile = Order{p}.found(smem, sequence);
    }

    __device__ __forceinline__ bool all_equal(const OwnLengths& own) const {
        const PackedBatch& batch = p.packed;
        bool other = own.first_query != own.index * equals.queries ||
                     own.first_key != own.index * equals.keys;
#pragma unroll 1
        for (int i = threadIdx.x % 32 + 32; i <= batch.batch; i += 32) {
            other = other || batch.cu_seqlens_q[i] != i * equals.queries ||
                    batch.cu_seqlens_kv[i] != i * equals.keys;
        }
        return !__any_sync(kAllLanes, other);
    }

    // What the order depends on.
    struct Members {
        PackedBatch packed;
        int heads, l2_head_group;
    };

    // By all consumers.  `begun`: the first copies, which are taken back.
    __device__ __forceinline__ void order_members(bool begun) const {
        if (threadIdx.x / 128 == OrderingWarpgroup::kFirst / 128) {
            list_members({p.packed, p.heads, p.l2_head_group}, smem, begun);
        }
        ptx::bar_sync(static_cast<int>(NamedBarrier::ORDERED), kConsumers);
    }

    // A call, with values: a launch of equal sequences whose instructions come from memory does not
    // read through its code, and parameters by reference would be read from memory.  Where all
    // registers are there: a call before would keep them from being shared out.
    __device__ __noinline__ static void list_members(const Members members,
                                                     const SharedAddress<CFG> smem, bool begun) {
        fa_tune::list_members<OrderingWarpgroup, CFG.B_r(), Order::kLongestFirst>(
            members, Order::scratch(smem));
        if (begun && threadIdx.x == OrderingWarpgroup::kFirst) take_back(smem);
    }

    // The first copies, before anyone waits for them: they come, and nobody hears of it, for two
    // phases later a barrier is as it was.
    __device__ __forceinline__ static void take_back(const SharedAddress<CFG>& smem) {
#pragma unroll 1
        for (int i = 0; i < CFG.mma_warpgroups; ++i) forget(smem.q_full(i));
        forget(smem.k_full(0));
    }
    __device__ __forceinline__ static void forget(unsigned full) {
        ptx::mbarrier_wait(full, 0);
        ptx::mbarrier_arrive(full);
    }
};

}  // namespace fa_tune::sm90
