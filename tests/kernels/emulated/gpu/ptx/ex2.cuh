// On the host: kernels/ptx/ex2.cuh.
#pragma once

namespace fa_tune::ptx {

inline float ex2_approx(float x) {
    const float y = exp2f(x);
    return y < 1.17549435e-38f ? 0.f : y;  // .ftz
}

}  // namespace fa_tune::ptx
