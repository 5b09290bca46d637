// Words in global memory that CTAs hand to one another, past L1, and aligned stores of several.
// PTX ISA: ld.global.cg, st.global.cg, atom.acq_rel.gpu, ld.acquire.gpu, red.and.  Minimum: sm_70.
#pragma once

namespace fa_tune::ptx {

__device__ __forceinline__ void ld_global_cg_v4(float (&words)[4], const float* address) {
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(words[0]), "=f"(words[1]), "=f"(words[2]), "=f"(words[3])
                 : "l"(address)
                 : "memory");
}

__device__ __forceinline__ void ld_global_cg_v2(float (&words)[2], const float* address) {
    asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];"
                 : "=f"(words[0]), "=f"(words[1])
                 : "l"(address)
                 : "memory");
}

__device__ __forceinline__ void st_global_cg_v4(float* address, const float (&words)[4]) {
    asm volatile("st.global.cg.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(address), "f"(words[0]),
                 "f"(words[1]), "f"(words[2]), "f"(words[3])
                 : "memory");
}

__device__ __forceinline__ void st_global_cg_v2(float* address, float first, float second) {
    asm volatile("st.global.cg.v2.f32 [%0], {%1, %2};" ::"l"(address), "f"(first), "f"(second)
                 : "memory");
}

// Two words of two elements each.
__device__ __forceinline__ void st_global_v2(unsigned short* address, unsigned first,
                                             unsigned second) {
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(address), "r"(first), "r"(second)
                 : "memory");
}

// Adds to a word, gives what it was before: earlier writes of this thread, and those that barriers
// have shown it, are to be seen by whoever adds later.
__device__ __forceinline__ unsigned atom_add_acq_rel(unsigned* address, unsigned value) {
    unsigned before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(address), "r"(value)
                 : "memory");
    return before;
}

// The same, which sets bits.
__device__ __forceinline__ unsigned atom_or_acq_rel(unsigned* address, unsigned bits) {
    unsigned before;
    asm volatile("atom.acq_rel.gpu.global.or.b32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(address), "r"(bits)
                 : "memory");
    return before;
}

// The same, which leaves only these bits.
__device__ __forceinline__ unsigned atom_and_acq_rel(unsigned* address, unsigned bits) {
    unsigned before;
    asm volatile("atom.acq_rel.gpu.global.and.b32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(address), "r"(bits)
                 : "memory");
    return before;
}

// Leaves only these bits.
__device__ __forceinline__ void red_and(unsigned* address, unsigned bits) {
    asm volatile("red.relaxed.gpu.global.and.b32 [%0], %1;" ::"l"(address), "r"(bits) : "memory");
}

// What another thread has written; what that has seen before is to be seen here after.
__device__ __forceinline__ unsigned ld_acquire(const unsigned* address) {
    unsigned word;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(address) : "memory");
    return word;
}

}  // namespace fa_tune::ptx
