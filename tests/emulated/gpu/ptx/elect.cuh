// On the host: kernels/ptx/elect.cuh.  Any lane, but always the same.
#pragma once

namespace ptx {

inline bool elect_one() {
    emulator::meet("elect.sync");
    return emulator::current->warp->elected == emulator::current->lane;
}

}  // namespace ptx
