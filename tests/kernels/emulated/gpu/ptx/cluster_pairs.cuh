// On the host: kernels/ptx/cluster_pairs.cuh.  Other threads may come in front of each access.
#pragma once

namespace fa_tune::ptx {

template <class Word>
inline void st_shared_v2(unsigned address, Word first, Word second) {
    const Word words[2] = {first, second};
    emulator::point();
    emulator::wrote(address, sizeof words);
    std::memcpy(emulator::ordinary(address, sizeof words), words, sizeof words);
}

inline void ld_cluster_v2(float (&pair)[2], unsigned address) {
    emulator::point();
    std::memcpy(pair, emulator::ordinary(address, sizeof pair), sizeof pair);
}

}  // namespace fa_tune::ptx
