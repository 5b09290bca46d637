// On the host: kernels/ptx/cluster.cuh.
#pragma once

namespace fa_tune::ptx {

inline int cluster_rank() { return static_cast<int>(emulator::current->cta->rank); }

inline void cluster_arrive() { emulator::cluster_arrive(); }
inline void cluster_wait() { emulator::cluster_wait(); }

inline unsigned address_in_cta(unsigned address, int rank) {
    return emulator::in_cta(address, static_cast<unsigned>(rank));
}

inline void st_cluster_v4(unsigned address, const float (&words)[4]) {
    emulator::point();
    std::memcpy(emulator::ordinary(address, 16), words, 16);
}

inline void st_cluster_v2(unsigned address, float first, float second) {
    emulator::point();
    const float words[2] = {first, second};
    std::memcpy(emulator::ordinary(address, 8), words, 8);
}

}  // namespace fa_tune::ptx
