// On the host: kernels/ptx/pin.cuh.  The store never happens.
#pragma once

namespace ptx {

inline void pin_before_here(float, unsigned) {}

inline void pin_before_here(float, const unsigned (&)[4], const unsigned (&)[4],
                            const unsigned (&)[4], const unsigned (&)[4], unsigned) {}

}  // namespace ptx
