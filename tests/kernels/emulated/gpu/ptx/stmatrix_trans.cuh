// On the host: kernels/ptx/stmatrix_trans.cuh.
#pragma once

namespace fa_tune::ptx {

// Lane l has the address of row l % 8 of matrix l / 8, and two elements of a column of each matrix.
inline void stmatrix_x4_trans(unsigned address, const unsigned (&r)[4]) {
    emulator::wrote(address, 16);
    emulator::meet(
        "stmatrix.trans",
        [](emulator::Warp& warp) {
            for (int lane = 0; lane < emulator::kLanes; ++lane) {
                const auto* const registers =
                    reinterpret_cast<const unsigned*>(warp.given[lane][1]);
                for (int i = 0; i < 4; ++i) {
                    for (int e = 0; e < 2; ++e) {
                        const int row = 2 * (lane % 4) + e;
                        const auto at = static_cast<unsigned>(warp.given[8 * i + row][0]);
                        const auto value = static_cast<std::uint16_t>(registers[i] >> 16 * e);
                        std::memcpy(emulator::ordinary(at, 16) + 2 * (lane / 4), &value, 2);
                    }
                }
            }
        },
        address, reinterpret_cast<std::uint64_t>(&r[0]));
}

}  // namespace fa_tune::ptx
