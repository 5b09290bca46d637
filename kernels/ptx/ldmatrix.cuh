// Four 8x8 matrices of 16-bit elements from shared memory to the registers of a warp.
// PTX ISA: ldmatrix.  Minimum: sm_75.
//
// Lane l supplies the address of row l % 8 of matrix l / 8 (16 bytes per row).  Afterwards
// register i of lane l holds elements (row l / 4, columns 2 (l % 4) and + 1) of matrix i;
// with .trans, elements (row 2 (l % 4) and + 1, column l / 4).
#pragma once

namespace fa_tune::ptx {

// Volatile keeps the order in which a config stages its fragments.
__device__ __forceinline__ void ldmatrix_x4(unsigned (&r)[4], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_x4_trans(unsigned (&r)[4], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

}  // namespace fa_tune::ptx
