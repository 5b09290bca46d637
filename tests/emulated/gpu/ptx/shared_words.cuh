// On the host: kernels/ptx/shared_words.cuh.
#pragma once

namespace ptx {

inline void store_shared_v4(unsigned address, const int (&words)[4]) {
    emulator::wrote(address, 16);
    std::memcpy(emulator::ordinary(address, 16), words, 16);
}

inline void load_shared_v4(int (&words)[4], unsigned address) {
    std::memcpy(words, emulator::ordinary(address, 16), 16);
}

}  // namespace ptx
