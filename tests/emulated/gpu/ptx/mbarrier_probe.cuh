// On the host: kernels/ptx/mbarrier_probe.cuh.
#pragma once

#include "ptx/mbarrier.cuh"

namespace ptx {

inline unsigned mbarrier_probe(unsigned barrier, unsigned parity) {
    emulator::point();
    return (emulator::barrier_at(barrier).phase & 1) != parity;
}

inline void mbarrier_wait_unless(unsigned ended, unsigned barrier, unsigned parity) {
    if (!ended) mbarrier_wait(barrier, parity);
}

}  // namespace ptx
