// On the host: kernels/ptx/wgmma.cuh.
#pragma once

namespace fa_tune::ptx {

inline void wgmma_fence() {}

inline void wgmma_commit_group() { emulator::close_group(); }

template <int kPending>
inline void wgmma_wait_group() {
    emulator::wait_for_products(kPending);
}

template <int kN, bool kBf16>
struct WgmmaM64K16 {
    // But for A.
    static emulator::Product product(float (&d)[kN / 2], unsigned long long b, int accumulate) {
        emulator::Product made;
        made.n = kN;
        made.bf16 = kBf16;
        made.accumulate = accumulate;
        made.b = b;
        made.d[0] = d;
        return made;
    }

    static void ss(float (&d)[kN / 2], unsigned long long a, unsigned long long b, int accumulate) {
        emulator::Product made = product(d, b, accumulate);
        made.a = a;
        emulator::issue(made);
    }

    static void ss4(float (&d)[kN / 2], unsigned long long a, unsigned long long b,
                    int accumulate) {
        for (int t = 0; t < 4; ++t) ss(d, a + 2 * t, b + 2 * t, t > 0 ? 1 : accumulate);
    }

    template <bool kNMajor>
    static void rs(float (&d)[kN / 2], const unsigned (&a)[4], unsigned long long b,
                   int accumulate) {
        emulator::Product made = product(d, b, accumulate);
        made.n_major = kNMajor;
        made.a_in_registers = true;
        made.a_registers[0] = a;
        emulator::issue(made);
    }

    template <bool kNMajor>
    static void rs4(float (&d)[kN / 2], const unsigned (*a)[4], unsigned long long b,
                    int accumulate) {
        for (int t = 0; t < 4; ++t) {
            rs<kNMajor>(d, a[t], b + (kNMajor ? 128 : 2) * t, t > 0 ? 1 : accumulate);
        }
    }
};

}  // namespace fa_tune::ptx
