// On the host: kernels/ptx/cluster.cuh.
#pragma once

#include <array>

namespace fa_tune::ptx {

inline int cluster_rank() { return static_cast<int>(emulator::current->cta->rank); }

inline void cluster_arrive_relaxed() { emulator::cluster_arrive(); }
inline void cluster_wait() { emulator::cluster_wait(); }

inline unsigned address_in_cta(unsigned address, int rank) {
    return emulator::in_cta(address, static_cast<unsigned>(rank));
}

// NaN while they are under way.
template <int kWords>
inline void st_async(unsigned address, const float (&words)[kWords], unsigned barrier) {
    emulator::point();
    if (address >> 24 != barrier >> 24) emulator::fail("a barrier in another CTA than the words");
    std::uint8_t* const to = emulator::ordinary(address, sizeof words);
    std::memset(to, 0xff, sizeof words);
    emulator::Barrier* const state = &emulator::barrier_at(barrier);
    const auto copied = std::to_array(words);
    emulator::start_copy(
        [=] {
            std::memcpy(to, copied.data(), sizeof copied);
            emulator::complete(*state, sizeof copied);
        },
        nullptr, &emulator::cta_of(address));
}

inline void st_async_v4(unsigned address, const float (&words)[4], unsigned barrier) {
    st_async(address, words, barrier);
}

inline void st_async_v2(unsigned address, float first, float second, unsigned barrier) {
    st_async(address, {first, second}, barrier);
}

}  // namespace fa_tune::ptx
