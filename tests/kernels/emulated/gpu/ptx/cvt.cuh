// On the host: kernels/ptx/cvt.cuh.
#pragma once

#include "element.h"

namespace fa_tune::ptx {

inline unsigned cvt_rn_f16x2_f32(float lower, float upper) {
    return emulator::pack(lower, upper, false);
}

inline unsigned cvt_rn_bf16x2_f32(float lower, float upper) {
    return emulator::pack(lower, upper, true);
}

}  // namespace fa_tune::ptx
