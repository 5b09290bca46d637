// Barriers in shared memory that count arrivals and bytes.
// PTX ISA: mbarrier.  Minimum: sm_90.
//
// A barrier's phase ends when its pending arrivals and its pending bytes are both 0; the next
// phase begins with `count` arrivals.  A wait names the parity of the phase it waits for: 0 for
// the first one, then 1, 0, ...; a fresh barrier lets a wait for parity 1 pass.
#pragma once

namespace fa_tune::ptx {

__device__ __forceinline__ void mbarrier_init(unsigned barrier, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

// Makes initialised barriers visible to the asynchronous copies.
__device__ __forceinline__ void fence_mbarrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// One arrival, and `bytes` more to come in this phase.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(unsigned barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

// Wait for the end of the phase of that parity.
__device__ __forceinline__ void mbarrier_wait(unsigned barrier, unsigned parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n"
        "}" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

// Whether the phase of that parity has ended; does not wait.
__device__ __forceinline__ unsigned mbarrier_test_wait(unsigned barrier, unsigned parity) {
    unsigned ended;
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
        "selp.u32 %0, 1, 0, done;\n"
        "}"
        : "=r"(ended)
        : "r"(barrier), "r"(parity)
        : "memory");
    return ended;
}

// Wait for the end of the phase of that parity, unless it has been seen.
__device__ __forceinline__ void mbarrier_wait_unless(unsigned ended, unsigned barrier,
                                                     unsigned parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "setp.ne.u32 done, %0, 0;\n"
        "@done bra over;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
        "@!done bra again;\n"
        "over:\n"
        "}" ::"r"(ended),
        "r"(barrier), "r"(parity)
        : "memory");
}

}  // namespace fa_tune::ptx
