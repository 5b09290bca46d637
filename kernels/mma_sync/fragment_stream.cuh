// Fragments of one operand on their way from shared memory to registers.
//
// A product walks kTotal k-tiles (16 elements of the reduced dimension each).  An operand is
// staged kTiles of them at a time; kTiles = 0 stages all of them at once.  With kDoubleBuffer
// the next group is loaded before the current one is multiplied:
//
//     kTiles 2, plain      load 0 1 | mul 0 1 | load 2 3 | mul 2 3 | ...
//     kTiles 2, buffered   load 0 1 | load 2 3 | mul 0 1 | load 4 5 | mul 2 3 | ...
//     kTiles 0             load 0 1 2 3 ... | mul 0 1 2 3 ...
//
// kPerTile is the number of 4-register fragments of one k-tile: 16-row tiles of A, 16-column
// pairs of B.  Everything is unrolled: registers are only ever indexed by constants.
#pragma once

namespace fa_tune::mma_sync {

template <int kTotal_, int kTiles, int kPerTile_, bool kDoubleBuffer>
struct FragmentStream {
    static constexpr int kTotal = kTotal_;
    static constexpr int kPerTile = kPerTile_;
    static constexpr int kGroupTiles = kTiles == 0 ? kTotal : kTiles;
    static constexpr int kGroups = kTotal / kGroupTiles;
    static constexpr int kStages = kDoubleBuffer && kGroups > 1 ? 2 : 1;
    static_assert(kTotal % kGroupTiles == 0, "whole groups of k-tiles");

    unsigned registers[kStages][kGroupTiles][kPerTile][4];

    // Called before k-tile `t` is multiplied; load(fragment, t, i) fetches fragment i of k-tile t.
    template <typename Load>
    __device__ __forceinline__ void prepare(int t, Load&& load) {
        if (t % kGroupTiles != 0) return;
        const int group = t / kGroupTiles;
        if constexpr (kStages == 1) {
            fetch(group, 0, load);
        } else {
            if (group == 0) fetch(0, 0, load);
            if (group + 1 < kGroups) fetch(group + 1, (group + 1) % 2, load);
        }
    }

    __device__ __forceinline__ const unsigned (&fragment(int t, int i) const)[4] {
        return registers[(t / kGroupTiles) % kStages][t % kGroupTiles][i];
    }

  private:
    template <typename Load>
    __device__ __forceinline__ void fetch(int group, int stage, Load&& load) {
#pragma unroll
        for (int t = 0; t < kGroupTiles; ++t) {
#pragma unroll
            for (int i = 0; i < kPerTile; ++i) {
                load(registers[stage][t][i], group * kGroupTiles + t, i);
            }
        }
        // Shared-memory loads do not move across a warp barrier: the assembler, too, keeps one
        // group's loads together and ahead of the next group's.  It costs no cycle of its own.
        __syncwarp();
    }
};

}  // namespace fa_tune::mma_sync
