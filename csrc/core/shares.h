// How CTAs share the blocks of keys of all tiles (kernels/decode/work.cuh).
#pragma once

#include <cstdint>

#include "status.h"

namespace fa_tune::core {

// A kernel counts tiles, or blocks of keys, and sums of two such numbers, in 32 bits.
constexpr std::int64_t kMaxTiles = 1 << 30;

struct Shares {
    std::int64_t row_tiles;  // of the rows of one head of K and V
    std::int64_t tiles;
    std::int64_t blocks;  // of a tile
    std::int64_t pitch;   // of tiles in the line
    std::int64_t share;   // blocks of the line that a CTA takes
    std::int64_t ctas;
    std::int64_t most_ctas;  // of any launch with so many keys or fewer
    std::int64_t part_rows;  // of a part in memory
};

// Those of a launch with lengths that the host knows.
Shares share_blocks(const fa_tune_launch_plan& plan, const fa_tune_problem& problem,
                    std::int64_t multiprocessors);

// The same where the device alone knows them: as many CTAs as there may be, each of which computes
// its share.
void share_on_device(const fa_tune_launch_plan& plan, const fa_tune_problem& problem,
                     Shares& shares);

}  // namespace fa_tune::core
