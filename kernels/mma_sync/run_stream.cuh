// Fragments of a B operand that several A operands meet in runs, and that are loaded ahead.
//
// kLength fragments meet the first A operand one after another, then the same fragments the
// next A operand, and so on through kRuns; then come the next kLength fragments:
//
//     kLength 4, kRuns 2     step       0  1  2  3   4  5  6  7   8  9 10 11  12 ...
//                            A          0  0  0  0   1  1  1  1   0  0  0  0   1 ...
//                            fragment   0  1  2  3   0  1  2  3   4  5  6  7   4 ...
//
// With kTurning every second group of kLength fragments meets the A operands in reverse, so that
// the last one of a group is the first of the next:
//
//     A, turning         0  0  0  0   1  1  1  1   1  1  1  1   0 ...
//
// An A operand that stays the same from one product to the next is read from its registers
// once.  Loads are spread evenly, one every kRuns steps, and each is issued kLead steps before
// its first use or earlier.  The assembler has the last word on the order; the more fragments
// are there ahead of it, the more of the runs it keeps.  Everything is unrolled.
#pragma once

namespace fa_tune::mma_sync {

template <int kFragments, int kLength, int kRuns, int kLead, bool kTurning>
struct RunStream {
    static constexpr int kSteps = kFragments * kRuns;
    // Fragment x is loaded in step kRuns x - kDelay, or before the first one.
    static constexpr int kDelay = (kRuns - 1) * (kLength - 1) + kLead;
    // Loaded and not yet used for the last time, at most: a slot is free in the step after that.
    static constexpr int kSlots = ((kRuns - 1) * kLength + kDelay + kRuns) / kRuns;
    static_assert(kFragments % kLength == 0, "whole runs");

    unsigned registers[kSlots][4];

    // The A operand of a step.
    __device__ __forceinline__ static constexpr int run(int step) {
        const int forth = step / kLength % kRuns;
        return kTurning && step / (kLength * kRuns) % 2 == 1 ? kRuns - 1 - forth : forth;
    }
    __device__ __forceinline__ static constexpr int fragment_of(int step) {
        return step / (kLength * kRuns) * kLength + step % kLength;
    }

    // What is loaded before the first step.  load(registers, x) fetches fragment x.
    template <typename Load>
    __device__ __forceinline__ void start(Load&& load) {
#pragma unroll
        for (int x = 0; x < kFragments; ++x) {
            if (kRuns * x < kDelay) load(registers[x % kSlots], x);
        }
    }

    // The load of a step, if any; before its product.
    template <typename Load>
    __device__ __forceinline__ void advance(int step, Load&& load) {
        const int x = (step + kDelay) / kRuns;
        if ((step + kDelay) % kRuns == 0 && x < kFragments) load(registers[x % kSlots], x);
    }

    __device__ __forceinline__ const unsigned (&at(int step) const)[4] {
        return registers[fragment_of(step) % kSlots];
    }
};

}  // namespace fa_tune::mma_sync
