// What a warpgroup (four consecutive warps) asks of the hardware.
// PTX ISA: setmaxnreg.  Minimum: sm_90a.
#pragma once

namespace fa_tune::ptx {

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

}  // namespace fa_tune::ptx
