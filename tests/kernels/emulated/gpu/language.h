// CUDA's language, as far as the kernels use it, for the threads of machine.h.
#pragma once

#include <math.h>

#include <algorithm>
#include <bit>
#include <climits>
#include <cstdint>
#include <cstring>
#include <functional>

#include "machine.h"

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __noinline__
#define __shared__
#define __align__(bytes)
#define __grid_constant__
#define __launch_bounds__(...)
#define __cluster_dims__(...)

#define threadIdx (emulator::current->index)
#define blockIdx (emulator::current->cta->index)
#define blockDim (emulator::block_dim)
#define gridDim (emulator::grid_dim)

using std::max;
using std::min;

struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

// Dynamic shared memory: kernels ask for its address alone, which is 0.
inline std::size_t __cvta_generic_to_shared(const void*) { return 0; }

// For an access within the 16 bytes around it, which may be a write.
inline void* __cvta_shared_to_generic(std::size_t address) {
    const auto chunk = static_cast<unsigned>(address) & ~15u;
    emulator::wrote(chunk, 16);
    return emulator::ordinary(chunk, 16) + address % 16;
}

inline float __int_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }

// Sums and products that the compiler must not fuse: here it fuses none, see -ffp-contract.
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }

inline unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned shift) {
    const std::uint64_t both = std::uint64_t{high} << 32 | low;
    return static_cast<unsigned>(both >> min(shift, 32u));
}

inline unsigned atomicAdd(unsigned* address, unsigned value) {
    emulator::point();
    const unsigned old = *address;
    *address += value;
    return old;
}

[[noreturn]] inline void __trap() { emulator::fail("__trap()"); }

inline void __syncthreads() {
    emulator::named_barrier(0, blockDim.x * blockDim.y * blockDim.z, true);
}

inline void __syncwarp() { emulator::meet("__syncwarp()"); }

namespace emulator {

// Every lane gets the word of the lane that it names.
template <class T>
T shuffle(const char* at, T value, int source) {
    static_assert(sizeof(T) == 4);
    const auto* const taken = meet(
        at,
        [](Warp& warp) {
            for (int lane = 0; lane < kLanes; ++lane) {
                warp.taken[lane][0] = warp.given[warp.given[lane][1] % kLanes][0];
            }
        },
        std::bit_cast<unsigned>(value), static_cast<unsigned>(source));
    return std::bit_cast<T>(static_cast<unsigned>(taken[0]));
}

}  // namespace emulator

template <class T>
T __shfl_sync(unsigned, T value, int source) {
    return emulator::shuffle("__shfl_sync()", value, source);
}

template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
    return emulator::shuffle("__shfl_xor_sync()", value, emulator::current->lane ^ mask);
}

inline bool __any_sync(unsigned, bool predicate) {
    const auto* const taken = emulator::meet(
        "__any_sync()",
        [](emulator::Warp& warp) {
            std::uint64_t any = 0;
            for (const auto& given : warp.given) any |= given[0];
            for (auto& taken : warp.taken) taken[0] = any;
        },
        predicate);
    return taken[0] != 0;
}

inline unsigned __ballot_sync(unsigned, bool predicate) {
    const auto* const taken = emulator::meet(
        "__ballot_sync()",
        [](emulator::Warp& warp) {
            std::uint64_t lanes = 0;
            for (int lane = 0; lane < emulator::kLanes; ++lane) {
                lanes |= std::uint64_t(warp.given[lane][0] != 0) << lane;
            }
            for (auto& taken : warp.taken) taken[0] = lanes;
        },
        predicate);
    return static_cast<unsigned>(taken[0]);
}

namespace emulator {

// The least or the greatest of the lanes' numbers.
template <class Better>
int reduce(const char* at, int value) {
    const auto* const taken = meet(
        at,
        [](Warp& warp) {
            int best = static_cast<int>(warp.given[0][0]);
            for (const auto& given : warp.given) {
                const int number = static_cast<int>(given[0]);
                if (Better()(number, best)) best = number;
            }
            for (auto& taken : warp.taken) taken[0] = static_cast<unsigned>(best);
        },
        static_cast<unsigned>(value));
    return static_cast<int>(static_cast<unsigned>(taken[0]));
}

}  // namespace emulator

inline int __reduce_min_sync(unsigned, int value) {
    return emulator::reduce<std::less<int>>("__reduce_min_sync()", value);
}

inline int __reduce_max_sync(unsigned, int value) {
    return emulator::reduce<std::greater<int>>("__reduce_max_sync()", value);
}

// NaN is 0, and what no int holds is the nearest one.
inline int __float2int_rn(float x) {
    if (x != x) return 0;
    if (x >= 0x1p31f) return INT_MAX;
    return x <= -0x1p31f ? INT_MIN : static_cast<int>(nearbyintf(x));
}

inline int __popc(unsigned bits) { return std::popcount(bits); }
inline int __clz(unsigned bits) { return std::countl_zero(bits); }
