// On the host: kernels/ptx/stmatrix.cuh.
#pragma once

namespace fa_tune::ptx {

// Lane l has the address of row l % 8 of matrix l / 8, and two elements of a row of each matrix.
inline void stmatrix_x4(unsigned address, const unsigned (&r)[4]) {
    emulator::wrote(address, 16);
    emulator::meet(
        "stmatrix",
        [](emulator::Warp& warp) {
            for (int lane = 0; lane < emulator::kLanes; ++lane) {
                const auto* const registers =
                    reinterpret_cast<const unsigned*>(warp.given[lane][1]);
                for (int i = 0; i < 4; ++i) {
                    const auto row = static_cast<unsigned>(warp.given[8 * i + lane / 4][0]);
                    std::memcpy(emulator::ordinary(row, 16) + 4 * (lane % 4), &registers[i], 4);
                }
            }
        },
        address, reinterpret_cast<std::uint64_t>(&r[0]));
}

}  // namespace fa_tune::ptx
