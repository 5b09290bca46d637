// On the host: kernels/ptx/bar.cuh.
#pragma once

namespace fa_tune::ptx {

inline void bar_sync(int barrier, int threads) { emulator::named_barrier(barrier, threads, true); }

inline void bar_arrive(int barrier, int threads) {
    emulator::named_barrier(barrier, threads, false);
}

}  // namespace fa_tune::ptx
