// On the host: kernels/ptx/setmaxnreg.cuh.  Threads have all the registers they want.
#pragma once

namespace fa_tune::ptx {

template <int>
inline void setmaxnreg_dec() {
    emulator::meet("setmaxnreg");
}

template <int>
inline void setmaxnreg_inc() {
    emulator::meet("setmaxnreg");
}

}  // namespace fa_tune::ptx
