// On the host: kernels/ptx/lg2.cuh.
#pragma once

namespace fa_tune::ptx {

inline float lg2_approx(float x) { return log2f(x); }

}  // namespace fa_tune::ptx
