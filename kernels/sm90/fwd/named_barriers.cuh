// Who uses which of a CTA's 16 named barriers.  Number 0 is that of __syncthreads().
#pragma once

namespace fa_tune::sm90 {

// The first two for each of up to four consumer warpgroups.
enum class NamedBarrier : int {
    TURN = 1,      // + warpgroup: its turn to issue products, with pingpong
    EPILOGUE = 5,  // + warpgroup: its four warps, around the way out for O
    ORDER = 9,     // the warpgroup that orders a packed batch
    ORDERED = 10,  // all consumers, when it has
    // A packed batch's beginning.
    INITIALISED = 11,
    BEGIN = 12,
    FOUND = 13,
    DIVIDED = 14,  // all consumers of a CTA of a cluster, when they have no more keys
};

}  // namespace fa_tune::sm90
