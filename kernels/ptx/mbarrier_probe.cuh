// Looking at a barrier ahead of time, so that its answer is there when it is needed.
// PTX ISA: mbarrier.test_wait, mbarrier.try_wait.  Minimum: sm_90.
#pragma once

namespace ptx {

// Whether the phase of that parity has ended; does not wait.
__device__ __forceinline__ unsigned mbarrier_probe(unsigned barrier, unsigned parity) {
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

}  // namespace ptx
