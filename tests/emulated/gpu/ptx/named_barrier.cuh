// On the host: kernels/ptx/named_barrier.cuh.
#pragma once

namespace ptx {

inline void named_barrier_sync(int barrier, int threads) {
    emulator::named_barrier(barrier, threads, true);
}

inline void named_barrier_arrive(int barrier, int threads) {
    emulator::named_barrier(barrier, threads, false);
}

}  // namespace ptx
