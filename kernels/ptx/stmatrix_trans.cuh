// Four 8x8 matrices of 16-bit elements, which the registers of a warp hold transposed, to shared
// memory.
// PTX ISA: stmatrix with .trans.  Minimum: sm_90.
//
// As stmatrix.cuh, but register i of lane l holds elements (rows 2 (l % 4) and + 1, column l / 4)
// of matrix i.
#pragma once

namespace fa_tune::ptx {

__device__ __forceinline__ void stmatrix_x4_trans(unsigned address, const unsigned (&r)[4]) {
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
        "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
        : "memory");
}

}  // namespace fa_tune::ptx
