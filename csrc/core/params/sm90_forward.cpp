#include <algorithm>
#include <cstdint>

#include "params/forward.h"
#include "sm90/fwd/params.cuh"

namespace fa_tune::core {

namespace {

constexpr std::int64_t kRoomyDHead = 128;

// The part of L2 for the heads at work.  More heads are more tiles of unequal length, which end
// together; with large heads, the copies that miss L2 cost as much as that gains.
double l2_share(const fa_tune_problem& problem) {
    const bool large = std::max<std::int64_t>(problem.d_head, d_v_of(problem)) > kRoomyDHead;
    return large || problem.packed != 0 ? 0.5 : 1.0;
}

void fill(const Launching& launching, sm90::ForwardParams& params) {
    const fa_tune_problem& problem = launching.call.problem;
    set_problem(launching, params);
    params.m_blocks = static_cast<int>(tile_rows_of_head(launching.plan, problem));
    params.total_heads = static_cast<int>(problem.heads * batch_of(problem));
    params.l2_head_group = l2_head_group(launching.call, l2_share(problem));
}

}  // namespace

}  // namespace fa_tune::core

FA_TUNE_PARAMS_LAYOUT(sm90_forward, fa_tune::sm90::ForwardParams, false, fa_tune::core::fill);
