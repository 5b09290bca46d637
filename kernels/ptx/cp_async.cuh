// Asynchronous copies from global to shared memory, 16 bytes per thread.
// PTX ISA: cp.async, cp.async.commit_group, cp.async.wait_group.  Minimum: sm_80.
#pragma once

namespace fa_tune::ptx {

// shared[dst, dst + 16) = global[src, src + 16), past L1 (.cg), in the current group.  kLines: L2
// takes whole lines of 128 bytes from memory, else the sectors of 32 that are asked for.
template <bool kLines = true>
__device__ __forceinline__ void cp_async_cg_16(unsigned dst, const void* src) {
    if constexpr (kLines) {
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(dst), "l"(src)
                     : "memory");
    } else {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(dst), "l"(src) : "memory");
    }
}

// The same, reading only `bytes` (0 or 16) of the source and filling the rest with zeros.
template <bool kLines = true>
__device__ __forceinline__ void cp_async_cg_16_zfill(unsigned dst, const void* src, int bytes) {
    if constexpr (kLines) {
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(dst), "l"(src),
                     "r"(bytes)
                     : "memory");
    } else {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src),
                     "r"(bytes)
                     : "memory");
    }
}

// Close the current group of copies.
__device__ __forceinline__ void cp_async_commit_group() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Wait until at most kPending of this thread's groups are still under way.
template <int kPending>
__device__ __forceinline__ void cp_async_wait_group() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace fa_tune::ptx
