// On the host: kernels/ptx/mma.cuh.
#pragma once

#include "element.h"

namespace fa_tune::ptx {

template <bool kBf16>
inline void mma_m16n8k16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    struct Operands {
        float* d;
        const unsigned* a;
        unsigned b[2];
    };
    Operands mine{d, a, {b0, b1}};
    emulator::meet(
        kBf16 ? "mma (bf16)" : "mma (fp16)",
        [](emulator::Warp& warp) {
            float rows[16][16], columns[8][16];
            const auto of = [&](int lane) -> Operands& {
                return *reinterpret_cast<Operands*>(warp.given[lane][0]);
            };
            for (int lane = 0; lane < emulator::kLanes; ++lane) {
                for (int i = 0; i < 4; ++i) {
                    float* const to = &rows[lane / 4 + i % 2 * 8][lane % 4 * 2 + i / 2 * 8];
                    to[0] = emulator::to_float(of(lane).a[i] & 0xffff, kBf16);
                    to[1] = emulator::to_float(of(lane).a[i] >> 16, kBf16);
                }
                for (int i = 0; i < 2; ++i) {
                    float* const to = &columns[lane / 4][lane % 4 * 2 + 8 * i];
                    to[0] = emulator::to_float(of(lane).b[i] & 0xffff, kBf16);
                    to[1] = emulator::to_float(of(lane).b[i] >> 16, kBf16);
                }
            }
            for (int lane = 0; lane < emulator::kLanes; ++lane) {
                for (int i = 0; i < 4; ++i) {
                    const float* const row = rows[lane / 4 + i / 2 * 8];
                    const float* const column = columns[lane % 4 * 2 + i % 2];
                    float sum = 0;
                    for (int k = 0; k < 16; ++k) sum += row[k] * column[k];
                    of(lane).d[i] += sum;
                }
            }
        },
        reinterpret_cast<std::uint64_t>(&mine));
}

inline void mma_m16n8k16_f32_f16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    mma_m16n8k16<false>(d, a, b0, b1);
}

inline void mma_m16n8k16_f32_bf16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    mma_m16n8k16<true>(d, a, b0, b1);
}

}  // namespace fa_tune::ptx
