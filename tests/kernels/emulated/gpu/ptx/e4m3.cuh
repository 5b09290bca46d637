// On the host: kernels/ptx/e4m3.cuh.
#pragma once

#include "element.h"

namespace fa_tune::ptx {

inline float from_e4m3(unsigned bits) {
    const int exponent = bits >> 3 & 15, fraction = bits & 7;
    float value = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -9)
                                : std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
    if (exponent == 15 && fraction == 7) value = std::nanf("");
    return bits >> 7 & 1 ? -value : value;
}

inline void cvt_f16x2_e4m3(unsigned (&halves)[2], unsigned numbers) {
    for (int i = 0; i < 2; ++i) {
        const unsigned two = numbers >> 16 * i;
        halves[i] = emulator::pack(from_e4m3(two & 255), from_e4m3(two >> 8 & 255), false);
    }
}

inline void cvt_f32_f16x2(float& lower, float& upper, unsigned halves) {
    lower = emulator::to_float(static_cast<std::uint16_t>(halves), false);
    upper = emulator::to_float(static_cast<std::uint16_t>(halves >> 16), false);
}

inline unsigned prmt_0213(unsigned word) {
    return (word & 0xff0000ffu) | (word >> 8 & 0x0000ff00u) | (word << 8 & 0x00ff0000u);
}

}  // namespace fa_tune::ptx
