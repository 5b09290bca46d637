// Fragments of one operand that are loaded a fixed distance ahead of their use.
//
// Items are used one after another, each kFragments fragments of 4 registers; the load of item
// x + kAhead is issued before item x is used, into the registers of item x - 1:
//
//     kAhead 2     load 0 1 | load 2, use 0 | load 3, use 1 | load 4, use 2 | ...
//     registers    0    1          2               0               1
//
// Unlike mma_sync/fragment_stream.cuh it leaves the order to the assembler, which may load even
// earlier where it has registers.  Everything is unrolled.
#pragma once

namespace fa_tune::mma_sync {

template <int kAhead_, int kFragments>
struct RollingStream {
    static constexpr int kAhead = kAhead_;

    unsigned registers[kAhead + 1][kFragments][4];

    // load(fragment, item, i) fetches fragment i of an item.
    template <typename Load>
    __device__ __forceinline__ void fetch(int item, Load&& load) {
#pragma unroll
        for (int i = 0; i < kFragments; ++i) load(registers[item % (kAhead + 1)][i], item, i);
    }

    // The first kAhead items.
    template <typename Load>
    __device__ __forceinline__ void start(Load&& load) {
#pragma unroll
        for (int item = 0; item < kAhead; ++item) fetch(item, load);
    }

    __device__ __forceinline__ const unsigned (&fragment(int item, int i) const)[4] {
        return registers[item % (kAhead + 1)][i];
    }
};

}  // namespace fa_tune::mma_sync
