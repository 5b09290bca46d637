// What a launch passes: grid, parameters, tensor maps, as the families' Python computes them.
#pragma once

#include <cstdint>

#include "device.h"
#include "driver.h"
#include "kernel_params.h"
#include "status.h"

namespace fa_tune::core {

// One launch, ready for the driver.  It points into itself: it stays where it was made.
struct LaunchStep {
    LaunchStep() = default;
    LaunchStep(const LaunchStep&) = delete;
    LaunchStep& operator=(const LaunchStep&) = delete;

    unsigned grid[3];
    unsigned threads;
    unsigned shared_bytes;
    unsigned cluster[3];
    bool dependent;       // may begin before the launch in front of it is done
    CUtensorMap maps[4];  // Q, K, V, O
    KernelParams params;
    void* pointers[5];  // what the kernel takes, the maps first

    bool has_cluster() const { return cluster[0] * cluster[1] * cluster[2] > 1; }
};

// Whether a plan could be launched at all.
Status check_plan(const fa_tune_launch_plan& plan);

// Whether the tensors are those of the problem: 16-byte copies reach every row.
Status check_tensors(const fa_tune_problem& problem, const fa_tune_tensors& tensors);

// Device memory that the launch needs beside its tensors; all launches of a call have the same.
Status workspace_bytes(const fa_tune_launch_plan& plan, const fa_tune_problem& problem,
                       const Device& device, std::int64_t* bytes);

// A call of a checked plan on a checked problem.
struct Call {
    const fa_tune_problem& problem;
    const fa_tune_tensors& tensors;
    const Device& device;
};

// Grid and parameters, without counters.
Status make_step(const Driver& driver, const fa_tune_launch_plan& plan, const Call& call,
                 LaunchStep& step);

// For plans that have counters.
void set_counters(const fa_tune_launch_plan& plan, CUdeviceptr counters, LaunchStep& step);

}  // namespace fa_tune::core
