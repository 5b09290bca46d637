// On the host: kernels/ptx/ldmatrix.cuh.
#pragma once

namespace fa_tune::ptx {

template <bool kTransposed>
inline void load_matrices(unsigned (&r)[4], unsigned address) {
    // The rows lie in this CTA's memory; `taken` has the four registers.
    const auto* const taken = emulator::meet(
        kTransposed ? "ldmatrix.trans" : "ldmatrix",
        [](emulator::Warp& warp) {
            for (int i = 0; i < 4; ++i) {
                std::uint16_t rows[8][8];
                for (int row = 0; row < 8; ++row) {
                    const auto from = static_cast<unsigned>(warp.given[8 * i + row][0]);
                    std::memcpy(rows[row], emulator::ordinary(from, 16), 16);
                }
                for (int lane = 0; lane < emulator::kLanes; ++lane) {
                    const int major = lane / 4, minor = 2 * (lane % 4);
                    const unsigned lower = kTransposed ? rows[minor][major] : rows[major][minor];
                    const unsigned upper =
                        kTransposed ? rows[minor + 1][major] : rows[major][minor + 1];
                    warp.taken[lane][i] = lower | upper << 16;
                }
            }
        },
        address);
    for (int i = 0; i < 4; ++i) r[i] = static_cast<unsigned>(taken[i]);
}

inline void ldmatrix_x4(unsigned (&r)[4], unsigned address) { load_matrices<false>(r, address); }

inline void ldmatrix_x4_trans(unsigned (&r)[4], unsigned address) {
    load_matrices<true>(r, address);
}

}  // namespace fa_tune::ptx
