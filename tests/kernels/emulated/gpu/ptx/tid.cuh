// On the host: kernels/ptx/tid.cuh.
#pragma once

namespace fa_tune::ptx {

inline int tid_x() { return static_cast<int>(threadIdx.x); }

}  // namespace fa_tune::ptx
