// The maps by which the tensor memory accelerator reads and writes whole tensors.
#pragma once

#include <cstdint>

#include "driver.h"
#include "dtypes.h"
#include "fa_tune.h"
#include "status.h"

namespace fa_tune::core {

constexpr int kMaxBoxRows = 256;

// What a map has of its tensor, and the rows of a box, which is 64 columns wide.
struct MapShape {
    std::int32_t columns;
    std::int64_t rows;
    std::int64_t heads;
    int box_rows;
};

// Of dimensions (columns, sequence, heads, batch), innermost first; of a packed batch those of
// kernels/common/sequence.cuh.
fa_tune_tensor_map map_of(const fa_tune_problem& problem, const ElementType& type,
                          const fa_tune_tensor& tensor, const MapShape& shape);

// Whether the driver would make the map.
void check_map(const fa_tune_tensor_map& request);

// A thread keeps the maps that it has used last: programs come back to the same memory, and four
// maps are half of what a launch costs beside the driver's own launch.
void encode_map(const Driver& driver, const fa_tune_tensor_map& request, CUtensorMap& map);

}  // namespace fa_tune::core
