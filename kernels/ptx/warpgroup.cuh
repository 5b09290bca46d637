// What a warpgroup (four consecutive warps) or one of its warps does as a whole.
// PTX ISA: setmaxnreg, elect, barrier.  Minimum: sm_90a (setmaxnreg), sm_90 (elect).
#pragma once

namespace ptx {

// Give registers back, down to kRegisters per thread.  The whole warpgroup executes it.
template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_dec() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Take registers, up to kRegisters per thread; waits until the CTA has that many left.
template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_inc() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// True in one lane of a converged warp.  Unlike a comparison of the lane's number, the compiler
// knows that it is one: bulk copies need no loop over lanes.
__device__ __forceinline__ bool elect_one() {
    int elected;
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "elect.sync _|p, 0xffffffff;\n"
        "selp.b32 %0, 1, 0, p;\n"
        "}"
        : "=r"(elected));
    return elected != 0;
}

// Wait at hardware barrier `id` (1 to 15; 0 is __syncthreads) for `threads` threads in all.
__device__ __forceinline__ void barrier_sync(int id, int threads) {
    asm volatile("barrier.sync.aligned %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Count as arrived there without waiting.
__device__ __forceinline__ void barrier_arrive(int id, int threads) {
    asm volatile("barrier.arrive.aligned %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// A store that never happens, since sums of exponentials are not negative.  The compiler cannot
// know that, so that whatever `sum` depends on is computed before this point.
__device__ __forceinline__ void pin_before_here(float sum, unsigned scratch) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.lt.f32 p, %0, 0f00000000;\n"
        "@p st.volatile.shared.f32 [%1], %0;\n"
        "}" ::"f"(sum),
        "r"(scratch)
        : "memory");
}

}  // namespace ptx
