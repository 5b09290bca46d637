// Who uses which of a CTA's 16 named barriers.  Number 0 is that of __syncthreads().
#pragma once

namespace fa_tune::sm80 {

enum class NamedBarrier : int {
    // + turns * scheduler + turn: the turn of a warp, with ping_pong; of each of the four
    // schedulers up to three, so 1 to 12.
    TURN = 1,
};

}  // namespace fa_tune::sm80
