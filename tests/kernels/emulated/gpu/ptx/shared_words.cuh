// On the host: kernels/ptx/shared_words.cuh.  Other threads may come in front of each access.
#pragma once

namespace fa_tune::ptx {

inline void st_shared_v4(unsigned address, const int (&words)[4]) {
    emulator::point();
    emulator::wrote(address, 16);
    std::memcpy(emulator::ordinary(address, 16), words, 16);
}

inline void ld_shared_v4(int (&words)[4], unsigned address) {
    emulator::point();
    std::memcpy(words, emulator::ordinary(address, 16), 16);
}

inline void st_shared(unsigned address, int value) {
    emulator::point();
    emulator::wrote(address, 4);
    std::memcpy(emulator::ordinary(address, 4), &value, 4);
}

inline int ld_shared(unsigned address) {
    emulator::point();
    int value;
    std::memcpy(&value, emulator::ordinary(address, 4), 4);
    return value;
}

}  // namespace fa_tune::ptx
