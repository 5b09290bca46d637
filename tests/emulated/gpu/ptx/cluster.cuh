// On the host: kernels/ptx/cluster.cuh.
#pragma once

#include "ptx/tma.cuh"

namespace ptx {

inline void cluster_sync() { emulator::cluster_barrier(); }

inline unsigned in_cta(unsigned address, unsigned rank) { return emulator::in_cta(address, rank); }

inline void mbarrier_arrive_cluster(unsigned barrier) { emulator::arrive(barrier, 0); }

inline void mbarrier_arrive_expect_tx_cluster(unsigned barrier, int bytes) {
    emulator::arrive(barrier, bytes);
}

inline void store_async_cluster(unsigned address, unsigned barrier, const int (&words)[4]) {
    emulator::Cta* const to = &emulator::cta_of(address);
    emulator::Barrier* const arrives = &emulator::barrier_at(barrier);
    std::uint8_t* const place = emulator::ordinary(address, 16);
    std::memset(place, 0xff, 16);
    emulator::start_copy(
        [=, a = words[0], b = words[1], c = words[2], d = words[3]] {
            const int copied[4] = {a, b, c, d};
            std::memcpy(place, copied, 16);
            emulator::complete(*arrives, 16);
        },
        nullptr, to);
}

inline void tma_load_4d_multicast(unsigned destination, const TensorMap& map, unsigned barrier,
                                  unsigned short ctas, unsigned long long, int c0, int c1, int c2,
                                  int c3) {
    load_box(destination, map, barrier, ctas, {c0, c1, c2, c3});
}

}  // namespace ptx
