// kernels/ptx/min_nan.cuh on the host.
#pragma once

namespace fa_tune::ptx {

inline float min_nan(float a, float b) { return b < a || b != b ? b : a; }

}  // namespace fa_tune::ptx
