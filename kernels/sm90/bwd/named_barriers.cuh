// Who uses which of a CTA's 16 named barriers.  Number 0 is that of __syncthreads().
#pragma once

namespace fa_tune::sm90::backward {

enum class NamedBarrier : int {
    CONSUMERS = 1,  // both consumer warpgroups
    GRADIENTS = 2,  // + warpgroup: its four warps, around the way out of their gradients
    TURN = 4,       // + warpgroup: its turn to issue products
    // P of wide heads, from the warpgroup that makes dV to the one that makes dK
    WEIGHTS_FULL = 6,
    WEIGHTS_EMPTY = 7,
};

}  // namespace fa_tune::sm90::backward
