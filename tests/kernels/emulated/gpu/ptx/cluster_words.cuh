// On the host: kernels/ptx/cluster_words.cuh.  Other threads may come in front of each access.
#pragma once

namespace fa_tune::ptx {

inline void st_shared_v4(unsigned address, const float (&words)[4]) {
    emulator::point();
    emulator::wrote(address, 16);
    std::memcpy(emulator::ordinary(address, 16), words, 16);
}

inline void cluster_arrive() { emulator::cluster_arrive(); }

inline void ld_cluster_v4(float (&words)[4], unsigned address) {
    emulator::point();
    std::memcpy(words, emulator::ordinary(address, 16), 16);
}

}  // namespace fa_tune::ptx
