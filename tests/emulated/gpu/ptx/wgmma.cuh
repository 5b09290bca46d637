// On the host: kernels/ptx/wgmma.cuh.
#pragma once

namespace ptx {

inline void wgmma_fence() {}

inline void wgmma_commit_group() { emulator::close_group(); }

template <int kPending>
inline void wgmma_wait_group() {
    emulator::wait_for_products(kPending);
}

inline void keep_register(float&) {}
inline void keep_register(unsigned&) {}

template <int kN, bool kBf16>
struct WgmmaM64K16 {
    static void ss(float (&d)[kN / 2], unsigned long long a, unsigned long long b, int accumulate) {
        emulator::Product product;
        product.n = kN;
        product.bf16 = kBf16;
        product.accumulate = accumulate;
        product.a = a;
        product.b = b;
        product.d[0] = d;
        emulator::issue(product);
    }

    template <bool kNMajor>
    static void rs(float (&d)[kN / 2], const unsigned (&a)[4], unsigned long long b,
                   int accumulate) {
        emulator::Product product;
        product.n = kN;
        product.bf16 = kBf16;
        product.accumulate = accumulate;
        product.n_major = kNMajor;
        product.a_in_registers = true;
        product.b = b;
        product.d[0] = d;
        product.a_registers[0] = a;
        emulator::issue(product);
    }
};

}  // namespace ptx
