// Which kernel runs a problem: what Python chose before, or chooses now.
//
// A choice serves all problems of a bucket: of one dtype, head dimension, mask, log-sum-exp, group
// size and changes of scores, whose batch * heads and lengths have the same nearest powers of two;
// of decode shapes with as many heads of K and V, and as many queries.  So growing lengths need a
// choice per doubling, and of others that are not packed per 64 up to 1024.
// Problems that were tuned by themselves are no part of it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "fa_tune.h"

extern "C" {

// Makes a kernel for a problem ready on a device.  `text` gets why not, in one line that begins
// with the name of an exception.  1: done.
typedef int (*fa_tune_torch_resolver)(const fa_tune_problem* problem, int device,
                                      fa_tune_kernel** kernel, char* text, std::size_t size);

FA_TUNE_API void fa_tune_torch_set_resolver(fa_tune_torch_resolver resolver);
// A problem that no bucket serves.
FA_TUNE_API void fa_tune_torch_add_exact(const fa_tune_problem* problem, int device);
// Chooses a kernel for a problem, unless it is chosen.  1: done; else `text` says why not.
FA_TUNE_API int fa_tune_torch_prepare(const fa_tune_problem* problem, int device, char* text,
                                      std::size_t size);
// Forgets every choice.  `refusal`: what every call fails with from now on, "" for none.
FA_TUNE_API void fa_tune_torch_forget(const char* refusal);
// How many buckets and exact problems there are.
FA_TUNE_API std::size_t fa_tune_torch_choices(void);

}  // extern "C"

namespace fa_tune::op {

constexpr std::int64_t kMaxSize = INT32_MAX;  // of the core; products of two stay within 64 bits

// Of a problem on a device.
struct Choice {
    fa_tune_kernel* kernel = nullptr;  // ready there
    bool has_run = false;              // the core has taken the problem, and the next is known
    std::size_t workspace_bytes = 0;
};

// Fails with what `fa_tune_torch_forget` was told.
void check_refusal();

// This thread's until its next call.  The core refuses what is no problem.
Choice& choice_of(const fa_tune_problem& problem, int device);

}  // namespace fa_tune::op
