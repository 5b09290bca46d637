// On the host: kernels/ptx/warpgroup.cuh.  Threads have all the registers they want.
#pragma once

namespace ptx {

template <int>
inline void setmaxnreg_dec() {
    emulator::meet("setmaxnreg");
}

template <int>
inline void setmaxnreg_inc() {
    emulator::meet("setmaxnreg");
}

}  // namespace ptx
