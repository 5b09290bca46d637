// On the host: kernels/ptx/global_words.cuh.  Other threads may come in front of each access.
#pragma once

namespace fa_tune::ptx {

inline void ld_global_cg_v4(float (&words)[4], const float* address) {
    emulator::point();
    std::memcpy(words, address, 16);
}

inline void ld_global_cg_v2(float (&words)[2], const float* address) {
    emulator::point();
    std::memcpy(words, address, 8);
}

inline void st_global_cg_v4(float* address, const float (&words)[4]) {
    emulator::point();
    std::memcpy(address, words, 16);
}

inline void st_global_cg_v2(float* address, float first, float second) {
    emulator::point();
    address[0] = first;
    address[1] = second;
}

inline void st_global_v2(unsigned short* address, unsigned first, unsigned second) {
    emulator::point();
    std::memcpy(address, &first, 4);
    std::memcpy(address + 2, &second, 4);
}

inline unsigned atom_add_acq_rel(unsigned* address, unsigned value) {
    return atomicAdd(address, value);
}

inline unsigned atom_or_acq_rel(unsigned* address, unsigned bits) {
    emulator::point();
    const unsigned old = *address;
    *address |= bits;
    return old;
}

inline unsigned atom_and_acq_rel(unsigned* address, unsigned bits) {
    emulator::point();
    const unsigned old = *address;
    *address &= bits;
    return old;
}

inline void red_and(unsigned* address, unsigned bits) {
    emulator::point();
    *address &= bits;
}

// Whoever looks again and again lets others go first, or does not.
inline unsigned ld_acquire(const unsigned* address) {
    emulator::yield();
    return *address;
}

}  // namespace fa_tune::ptx
