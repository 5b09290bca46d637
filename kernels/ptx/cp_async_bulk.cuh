// Bulk copies of tensor boxes between global and shared memory, by one thread.
// PTX ISA: cp.async.bulk.tensor, cp.async.bulk.commit_group, cp.async.bulk.wait_group,
// prefetch.tensormap.  Minimum: sm_90.
//
// A box that reaches over the end of a dimension reads zeros there, and its whole size counts
// at the barrier; a store leaves such elements out.
#pragma once

namespace fa_tune::ptx {

// What cuTensorMapEncodeTiled writes: base address, dimensions, strides, box, swizzle.
struct alignas(64) TensorMap {
    unsigned long long opaque[16];
};

// L2 eviction policies, as createpolicy.fractional makes them for the whole of an access.
constexpr unsigned long long kEvictNormal = 0x1000000000000000ull;
constexpr unsigned long long kEvictFirst = 0x12f0000000000000ull;
constexpr unsigned long long kEvictLast = 0x14f0000000000000ull;

__device__ __forceinline__ void prefetch_tensormap(const TensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// The box at coordinates (c0, c1, c2, c3), innermost first, to shared memory at `destination`;
// its bytes arrive at `barrier`.
__device__ __forceinline__ void cp_async_bulk_tensor_4d_load(unsigned destination,
                                                             const TensorMap& map, unsigned barrier,
                                                             unsigned long long policy, int c0,
                                                             int c1, int c2, int c3) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%4, %5, %6, %7}], [%2], %3;" ::"r"(destination),
        "l"(&map), "r"(barrier), "l"(policy), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
        : "memory");
}

// The box at `source` in shared memory to global memory, in this thread's current bulk group.
__device__ __forceinline__ void cp_async_bulk_tensor_4d_store(const TensorMap& map, unsigned source,
                                                              int c0, int c1, int c2, int c3) {
    asm volatile(
        "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], "
        "[%1];" ::"l"(&map),
        "r"(source), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
        : "memory");
}

// The same with five coordinates.
__device__ __forceinline__ void cp_async_bulk_tensor_5d_load(unsigned destination,
                                                             const TensorMap& map, unsigned barrier,
                                                             unsigned long long policy, int c0,
                                                             int c1, int c2, int c3, int c4) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%4, %5, %6, %7, %8}], [%2], %3;" ::"r"(destination),
        "l"(&map), "r"(barrier), "l"(policy), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
        : "memory");
}

__device__ __forceinline__ void cp_async_bulk_tensor_5d_store(const TensorMap& map, unsigned source,
                                                              int c0, int c1, int c2, int c3,
                                                              int c4) {
    asm volatile(
        "cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5, %6}], "
        "[%1];" ::"l"(&map),
        "r"(source), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
        : "memory");
}

__device__ __forceinline__ void cp_async_bulk_commit_group() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Wait until this thread's bulk stores have read their shared memory.
__device__ __forceinline__ void cp_async_bulk_wait_group_read() {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

// This thread's ordinary writes to shared memory become visible to bulk copies and wgmma.
__device__ __forceinline__ void fence_proxy_async_shared() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace fa_tune::ptx
