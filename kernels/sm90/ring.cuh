// A position in a ring of shared-memory stages: producer and consumers each step through it in
// the same order, and its parity says which round they are in.
//
//     stage    0  1  2  0  1  2  0 ...
//     parity   0  0  0  1  1  1  0 ...
//
// A consumer waits for the stage's "full" barrier with `parity`, the producer for its "empty"
// barrier with `parity ^ 1`: in the first round every stage is empty.
#pragma once

template <int kStages>
struct RingPosition {
    int stage = 0;
    unsigned parity = 0;

    __device__ __forceinline__ void advance() {
        if (kStages == 1 || ++stage == kStages) {
            stage = 0;
            parity ^= 1;
        }
    }
};
