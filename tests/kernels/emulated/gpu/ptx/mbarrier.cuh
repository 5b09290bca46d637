// On the host: kernels/ptx/mbarrier.cuh.
#pragma once

namespace fa_tune::ptx {

inline void mbarrier_init(unsigned barrier, int count) {
    emulator::barrier_at(barrier) = {true, count, count, 0, 0, {}};
}

inline void fence_mbarrier_init() {}

inline void mbarrier_arrive(unsigned barrier) { emulator::arrive(barrier, 0); }

inline void mbarrier_arrive_expect_tx(unsigned barrier, int bytes) {
    emulator::arrive(barrier, bytes);
}

// A phase that ended goes unseen by whoever looks again only after the next one has.
inline void mbarrier_wait(unsigned barrier, unsigned parity) {
    emulator::Barrier& state = emulator::barrier_at(barrier);
    emulator::now_at("mbarrier", barrier, static_cast<int>(parity));
    if (!state.ready) emulator::fail("the barrier is not initialised");
    emulator::wait_until("mbarrier", state.waiters, [&] { return (state.phase & 1) != parity; });
}

inline unsigned mbarrier_test_wait(unsigned barrier, unsigned parity) {
    emulator::point();
    return (emulator::barrier_at(barrier).phase & 1) != parity;
}

inline void mbarrier_wait_unless(unsigned ended, unsigned barrier, unsigned parity) {
    if (!ended) mbarrier_wait(barrier, parity);
}

}  // namespace fa_tune::ptx
