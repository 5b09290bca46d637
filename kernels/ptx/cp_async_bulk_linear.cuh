// Bulk copies of bytes in a row, by one thread.
// PTX ISA: cp.async.bulk, fence.proxy.async.  Minimum: sm_90.
#pragma once

namespace fa_tune::ptx {

// Global to shared memory; the bytes arrive at `barrier`.  Addresses and size are multiples of 16.
__device__ __forceinline__ void cp_async_bulk_load(unsigned destination, const void* source,
                                                   int bytes, unsigned barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
        "[%3];" ::"r"(destination),
        "l"(source), "r"(bytes), "r"(barrier)
        : "memory");
}

// What this thread knows to be written to global memory is read by its copies after.
__device__ __forceinline__ void fence_proxy_async_global() {
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

}  // namespace fa_tune::ptx
