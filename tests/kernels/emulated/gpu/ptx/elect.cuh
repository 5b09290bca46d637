// On the host: kernels/ptx/elect.cuh.  Any lane, but always the same.
#pragma once

namespace fa_tune::ptx {

inline bool elect_sync() {
    emulator::meet("elect.sync");
    return emulator::current->warp->elected == emulator::current->lane;
}

}  // namespace fa_tune::ptx
