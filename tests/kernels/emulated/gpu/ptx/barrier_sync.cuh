// On the host: kernels/ptx/barrier_sync.cuh.
#pragma once

namespace fa_tune::ptx {

inline void barrier_sync(int barrier, int threads) {
    emulator::named_barrier(barrier, threads, true);
}

}  // namespace fa_tune::ptx
