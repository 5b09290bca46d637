// On the host: kernels/ptx/red.cuh.
#pragma once

namespace fa_tune::ptx {

inline void red_add(float* address, float a) {
    emulator::point();
    *address += a;
}

}  // namespace fa_tune::ptx
