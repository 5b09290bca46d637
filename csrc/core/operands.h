// The tensors of each operation, and what they must be like.
#pragma once

#include <cstdint>

#include "launch.h"
#include "status.h"

namespace fa_tune::core {

// Whether kernels of an operation are known.
bool is_operation(std::int32_t operation);

// What the keys of an operation's problems begin with.
const char* key_prefix(std::int32_t operation);

// Whether the tensors are those of the problem: 16-byte copies reach every row.
void check_tensors(const fa_tune_problem& problem, const fa_tune_tensors& tensors);

// Whether what is known on the device alone makes sense, and is for a plan.
void check_cache(const fa_tune_launch_plan& plan, const Call& call);

// Whether the workspace is as large as a launch needs: what is given, not how large it is.
void check_workspace(const fa_tune_problem& problem, const fa_tune_tensors& tensors);

}  // namespace fa_tune::core
