// The 16-bit element types: fp16 and bf16, by their bits.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace emulator {

inline float to_float(std::uint16_t bits, bool bf16) {
    if (bf16) {
        const std::uint32_t wide = std::uint32_t{bits} << 16;
        float value;
        std::memcpy(&value, &wide, 4);
        return value;
    }
    // A table: most processors convert fp16 in software.
    static const std::vector<float> values = [] {
        std::vector<float> all(1 << 16);
        for (std::size_t i = 0; i < all.size(); ++i) {
            const auto word = static_cast<std::uint16_t>(i);
            _Float16 value;
            std::memcpy(&value, &word, 2);
            all[i] = static_cast<float>(value);
        }
        return all;
    }();
    return values[bits];
}

// Rounded to nearest even.
inline std::uint16_t to_element(float value, bool bf16) {
    if (bf16) {
        std::uint32_t bits;
        std::memcpy(&bits, &value, 4);
        if (std::isnan(value)) return 0x7fff;
        return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
    const _Float16 rounded = static_cast<_Float16>(value);
    std::uint16_t bits;
    std::memcpy(&bits, &rounded, 2);
    return bits;
}

inline unsigned pack(float lower, float upper, bool bf16) {
    return to_element(lower, bf16) | static_cast<unsigned>(to_element(upper, bf16)) << 16;
}

}  // namespace emulator
