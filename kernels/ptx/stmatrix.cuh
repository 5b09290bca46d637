// Four 8x8 matrices of 16-bit elements from the registers of a warp to shared memory.
// PTX ISA: stmatrix.  Minimum: sm_90.
//
// The counterpart of ldmatrix: lane l supplies the address of row l % 8 of matrix l / 8 (16 bytes
// per row); register i of lane l holds elements (row l / 4, columns 2 (l % 4) and + 1) of matrix i.
#pragma once

namespace fa_tune::ptx {

__device__ __forceinline__ void stmatrix_x4(unsigned address, const unsigned (&r)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
                 "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}

}  // namespace fa_tune::ptx
