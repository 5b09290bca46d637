// Who uses which of a CTA's 16 named barriers.  Number 0 is that of __syncthreads().
#pragma once

namespace fa_tune::sm90 {

// A barrier each for up to four consumer warpgroups.
enum class NamedBarrier : int {
    TURN = 1,      // + warpgroup: its turn to issue products, with pingpong
    EPILOGUE = 5,  // + warpgroup: its four warps, around the way out for O
};

}  // namespace fa_tune::sm90
