// On the host: kernels/ptx/math.cuh.
#pragma once

namespace ptx {

inline float ex2_approx(float x) {
    const float y = exp2f(x);
    return y < 1.17549435e-38f ? 0.f : y;  // .ftz
}

inline float lg2_approx(float x) { return log2f(x); }

}  // namespace ptx
