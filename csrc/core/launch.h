// What a launch passes: grid, tensor maps and parameters.
#pragma once

#include <cstdint>

#include "device.h"
#include "driver.h"
#include "status.h"

namespace fa_tune::core {

struct ParamsLayout;

constexpr int kChunkBytes = 16;  // the unit of every copy between global and shared memory
constexpr std::int64_t kMemberBytes = 32;  // of a sequence in the list of a packed batch

// A launch of a plan that could be launched at all, and its parameters.
struct Launchable {
    fa_tune_launch_plan plan;
    const ParamsLayout* layout;
};
Launchable check_plan(const fa_tune_launch_plan& plan);

// A call of a checked plan on a checked problem.
struct Call {
    const fa_tune_problem& problem;
    const fa_tune_tensors& tensors;
    std::int64_t multiprocessors;
    std::int64_t l2_bytes;
};

// Query rows of a head in tiles; of a packed batch as many as there can be, whatever the lengths.
std::int64_t tile_rows_of_head(const fa_tune_launch_plan& plan, const fa_tune_problem& problem);

// Device memory that the launch needs beside its tensors; all launches of a call have the same.
std::int64_t workspace_bytes(const Launchable& launch, const fa_tune_problem& problem,
                             std::int64_t multiprocessors);

// All of a launch but its counters, into what need not be zeros.
void describe(const Launchable& launch, const Call& call, fa_tune_description& found);

// For plans that have counters.
void set_counters(const Launchable& launch, void* counters, fa_tune_description& found);

}  // namespace fa_tune::core
