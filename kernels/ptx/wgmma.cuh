// Warpgroup matrix multiply-accumulate, D = A B + D: one 64-row tile by kN columns by 16.
// PTX ISA: wgmma.mma_async.sync.aligned.m64nNk16, wgmma.fence, wgmma.commit_group,
// wgmma.wait_group.  Minimum: sm_90a.
//
// The four warps of a warpgroup work as one.  B is in shared memory, given by a descriptor
// (wgmma_descriptor.cuh); A likewise (ss) or in registers (rs).  Lane l of warp w holds of D
//
//                 column 8j + 2(l%4)     + 1
//     row 16w + l/4        d[4j]         d[4j + 1]         j = 0 .. kN/8 - 1
//     row 16w + l/4 + 8    d[4j + 2]     d[4j + 3]
//
// and of a register A (64 x 16) the same positions for j = 0, 1, packed in pairs along the row:
// so D of one product, rounded and packed in order, is A of the next.
#pragma once

namespace fa_tune::ptx {

// Ordinary writes to accumulators or to A's registers come before the wgmma that follow.
__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// Close the current group of wgmma.
__device__ __forceinline__ void wgmma_commit_group() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Wait until at most kPending of the latest groups are still under way.
template <int kPending>
__device__ __forceinline__ void wgmma_wait_group() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// wgmma of shape m64 n<kN> k16, 16-bit elements (bf16 if kBf16, else fp16), fp32 accumulators.
//     ss: A and B both k-major in shared memory
//     rs: A in registers, B in shared memory, k-major or n-major ("transposed")
// ss4 and rs4 are four of them one after another along k, on 64 columns of A, in one statement:
// for the compiler every statement with its up to 128 accumulators is work, and the descriptors
// of the second to fourth are not computed by it.  A k-major operand goes on by 32 bytes (one
// panel holds all four), an n-major one by 16 rows of 128 bytes.
// accumulate = 0 overwrites D (of four, by the first).
template <int kN, bool kBf16>
struct WgmmaM64K16;

}  // namespace fa_tune::ptx

#include "ptx/wgmma_operands.cuh"
