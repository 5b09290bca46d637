// On the host: kernels/ptx/shared_pairs.cuh.  Other threads may come in front of each access.
#pragma once

namespace fa_tune::ptx {

inline void ld_shared_v2(float (&pair)[2], unsigned address) {
    emulator::point();
    std::memcpy(pair, emulator::ordinary(address, 8), 8);
}

}  // namespace fa_tune::ptx
