// Rings of shared-memory stages, through which a producer hands data to consumers.
//
// Producer and consumers each step through a ring in the same order; a position's parity says
// which round it is in.
//
//     stage    0  1  2  0  1  2  0 ...
//     parity   0  0  0  1  1  1  0 ...
//
// Each stage has two barriers.  A consumer waits for "full" with `parity`, the producer for "empty"
// with `parity ^ 1`: in the first round every stage is empty.
#pragma once

#include "ptx/mbarrier.cuh"

namespace fa_tune {

// A barrier's state in shared memory.
struct Mbarrier {
    unsigned long long state;
};

// Of a member in its struct, in bytes; NVRTC has no offsetof.
template <class Owner, class Member>
__device__ __forceinline__ unsigned offset_of(Member Owner::* member) {
    return static_cast<unsigned>(
        reinterpret_cast<unsigned long long>(&(static_cast<Owner*>(nullptr)->*member)));
}

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

    __device__ __forceinline__ RingPosition next() const {
        return stage + 1 == kStages ? RingPosition{0, parity ^ 1} : RingPosition{stage + 1, parity};
    }

    __device__ __forceinline__ RingPosition previous() const {
        return stage == 0 ? RingPosition{kStages - 1, parity ^ 1} : RingPosition{stage - 1, parity};
    }

    // The same stage, a round later.
    __device__ __forceinline__ RingPosition next_round() const { return {stage, parity ^ 1}; }
};

// A consumer's way through a ring.  `full`, `empty`: the barriers of stage 0, others follow.
// kEarlyTest: a stage's release asks whether the next one is full; the answer takes its time, and
// the next wait is a softmax away.
template <int kStages, bool kEarlyTest>
struct RingReader {
    const unsigned full, empty;
    RingPosition<kStages> position = {};
    unsigned arrived = 0;  // the answer

    __device__ __forceinline__ void wait() const {
        const unsigned barrier = full + 8 * position.stage;
        if constexpr (kEarlyTest) {
            ptx::mbarrier_wait_unless(arrived, barrier, position.parity);
        } else {
            ptx::mbarrier_wait(barrier, position.parity);
        }
    }

    // Every warp arrives for itself: it has waited for its own products.
    __device__ __forceinline__ void release(int lane) {
        if (lane == 0) ptx::mbarrier_arrive(empty + 8 * position.stage);
        position.advance();
        if constexpr (kEarlyTest) {
            arrived = ptx::mbarrier_test_wait(full + 8 * position.stage, position.parity);
        }
    }
};

}  // namespace fa_tune
