// Configs that cannot run, refused at compile time.  The Python constraints of the family refuse
// them before compiling, with the same sentences.
#pragma once

#include "sm90/fwd/shared_memory.cuh"

namespace fa_tune::sm90 {

template <Sm90Config CFG>
struct Constraints {
    static_assert(CFG.d_head >= 32 && CFG.d_head <= 256 && CFG.d_head % 8 == 0,
                  "d_head must be a multiple of 8 between 32 and 256");
    static_assert(CFG.d_v() >= 16 && CFG.d_v() <= 256 && CFG.d_v() % 8 == 0,
                  "d_head_v must be 0, as d_head, or a multiple of 8 between 16 and 256");
    static_assert(CFG.mma_warpgroups >= 1 && CFG.mma_warpgroups <= 4,
                  "mma_warpgroups must be between 1 and 4, beside the warpgroup that loads");
    static_assert(CFG.B_c >= 16 && CFG.B_c <= 256 && CFG.B_c % 16 == 0,
                  "B_c must be a multiple of 16 between 16 and 256, columns of one wgmma and its "
                  "k-steps");
    static_assert(CFG.stages >= 1 && CFG.stages <= 8, "stages must be between 1 and 8");
    static_assert(CFG.q_stages == 1 || CFG.q_stages == 2,
                  "q_stages must be 1 or 2: a CTA works on one tile and may have the next one "
                  "loaded");
    static_assert(CFG.mma_warpgroups > 1 || !CFG.pingpong,
                  "pingpong needs at least 2 mma_warpgroups to take turns");
    static_assert(!CFG.cross_tile_overlap || (CFG.overlap && CFG.scheduler != Scheduler::SINGLE),
                  "cross_tile_overlap needs overlap and a scheduler that gives a CTA several "
                  "tiles");
    static_assert(CFG.q_stages == 1 || CFG.scheduler != Scheduler::SINGLE,
                  "q_stages 2 needs a scheduler that gives a CTA several tiles");
    static_assert(CFG.min_ctas_per_sm == 1 ||
                      (CFG.mma_warpgroups == 1 && CFG.min_ctas_per_sm >= 2 &&
                       CFG.min_ctas_per_sm <= 4) ||
                      (CFG.mma_warpgroups == 2 && CFG.min_ctas_per_sm == 2),
                  "min_ctas_per_sm must be 1; or up to 4 with 1 mma_warpgroup, or 2 with 2: more "
                  "leave too few registers");
    static_assert(!CFG.single_loop || CFG.rescale >= Rescale::STALE_MAX,
                  "single_loop needs stale_max, exact_max or watched_max: without them blocks with "
                  "a mask have a step of their own");
    static_assert(
        !CFG.rows_in_turn ||
            (CFG.rescale >= Rescale::STALE_MAX && CFG.overlap && CFG.mma_warpgroups == 2 &&
             CFG.min_ctas_per_sm == 1 && CFG.B_c >= 64 && CFG.padded_d_v() <= 128 &&
             2 * CFG.padded_d_v() + 3 * CFG.B_c <= 704),
        "rows_in_turn needs stale_max, exact_max or watched_max, overlap, 2 mma_warpgroups, "
        "min_ctas_per_sm 1, B_c of at least 64, d_head_v of at most 128 and 2 d_head_v + 3 B_c of "
        "at most 704");
    static_assert(!CFG.adaptive_max ||
                      ((CFG.rescale == Rescale::STALE_MAX || CFG.rescale == Rescale::WATCHED_MAX) &&
                       CFG.mma_warpgroups > 1 && 2 * CFG.padded_d_v() + 3 * CFG.B_c <= 704),
                  "adaptive_max needs stale_max or watched_max, at least 2 mma_warpgroups and 2 "
                  "d_head_v + 3 B_c of at most 704, as maxima that come first do");
    static_assert(CFG.rescale != Rescale::WATCHED_MAX || CFG.scheduler != Scheduler::SINGLE,
                  "watched_max needs a scheduler that gives a CTA several tiles");
    static_assert(CFG.splits >= 1 && CFG.splits <= 8,
                  "splits must be between 1 and 8, CTAs of a cluster");
    static_assert(CFG.splits == 1 || CFG.scheduler == Scheduler::SINGLE,
                  "splits are of one tile: no scheduler that gives a CTA several");
    static_assert(CFG.splits == 1 || SharedMemory<CFG>::kPartBytes <= SharedMemory<CFG>::kRingBytes,
                  "splits need room for fp32 O of a tile where K and V are: more stages or B_c");
};

}  // namespace fa_tune::sm90
