// Warp-wide matrix multiply-accumulate, D = A B + D, fp32 accumulation.
// PTX ISA: mma.sync.aligned.m16n8k16.  Minimum: sm_80.
//
// A is 16x16 row-major, B is 16x8 column-major, D is 16x8.  Lane l owns
//     a[0] = (l/4,     2(l%4)..+1)    a[2] = (l/4,     2(l%4)+8..+9)
//     a[1] = (l/4 + 8, 2(l%4)..+1)    a[3] = (l/4 + 8, 2(l%4)+8..+9)
//     b[0] = (2(l%4)..+1, l/4)        b[1] = (2(l%4)+8..+9, l/4)
//     d[0..1] = (l/4, 2(l%4)..+1)     d[2..3] = (l/4 + 8, 2(l%4)..+1)
#pragma once

namespace fa_tune::ptx {

__device__ __forceinline__ void mma_m16n8k16_f32_f16(float (&d)[4], const unsigned (&a)[4],
                                                     unsigned b0, unsigned b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void mma_m16n8k16_f32_bf16(float (&d)[4], const unsigned (&a)[4],
                                                      unsigned b0, unsigned b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace fa_tune::ptx
