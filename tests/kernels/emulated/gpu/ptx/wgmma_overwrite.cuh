// On the host: kernels/ptx/wgmma_overwrite.cuh.
#pragma once

#include "ptx/wgmma.cuh"

namespace fa_tune::ptx {

template <int kN, bool kBf16>
struct WgmmaNMajor {
    static void four(float (&d)[kN / 2], unsigned long long a, unsigned long long b,
                     int accumulate) {
        for (int t = 0; t < 4; ++t) {
            auto made = WgmmaM64K16<kN, kBf16>::product(d, b + 128 * t, t > 0 ? 1 : accumulate);
            made.n_major = true;
            made.a = a + 2 * t;
            emulator::issue(made);
        }
    }

    static void ss4(float (&d)[kN / 2], unsigned long long a, unsigned long long b) {
        four(d, a, b, 1);
    }
};

template <int kN, bool kBf16>
struct WgmmaOverwriting {
    static void ss2(float (&d)[kN / 2], unsigned long long a, unsigned long long b) {
        WgmmaM64K16<kN, kBf16>::ss(d, a, b, 0);
        WgmmaM64K16<kN, kBf16>::ss(d, a + 2, b + 2, 1);
    }
    static void ss4(float (&d)[kN / 2], unsigned long long a, unsigned long long b) {
        WgmmaM64K16<kN, kBf16>::ss4(d, a, b, 0);
    }
    static void ss4_n_major(float (&d)[kN / 2], unsigned long long a, unsigned long long b) {
        WgmmaNMajor<kN, kBf16>::four(d, a, b, 0);
    }
};

}  // namespace fa_tune::ptx
