// How CTAs share the blocks of keys of all tiles: fa_tune/families/decode/launch.py, Shares.
#pragma once

#include <cstdint>

#include "device.h"
#include "status.h"

namespace fa_tune::core {

// A kernel counts tiles, or blocks of keys, and sums of two such numbers, in 32 bits.
constexpr std::int64_t kMaxTiles = 1 << 30;

struct Shares {
    std::int64_t row_tiles, tiles, blocks, pitch, share, ctas, most_ctas, part_rows;
};

// Those of a launch with lengths that the host knows.
Status share_blocks(const fa_tune_launch_plan& plan, const fa_tune_problem& problem,
                    const Device& device, Shares& found);

// The same where the device alone knows them: as many CTAs as there may be, each of which computes
// its share.
Status share_on_device(const fa_tune_launch_plan& plan, const fa_tune_problem& problem,
                       Shares& shares);

}  // namespace fa_tune::core
