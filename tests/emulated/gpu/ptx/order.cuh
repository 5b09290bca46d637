// On the host: kernels/ptx/order.cuh.
#pragma once

namespace ptx {

inline float fmax_after(float x, float) { return x; }

}  // namespace ptx
