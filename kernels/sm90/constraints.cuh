// Configs that cannot run, refused at compile time.  fa_tune/families/sm90_constraints.py refuses
// them before compiling, with the same sentences.
#pragma once

#include "sm90/config.cuh"

template <Sm90Config CFG>
struct Constraints {
    static_assert(CFG.d_head == 64 || CFG.d_head == 128 || CFG.d_head == 192 || CFG.d_head == 256,
                  "d_head must be 64, 128, 192 or 256: whole panels of 64 columns, one wgmma wide "
                  "at most");
    static_assert(CFG.consumers >= 1 && CFG.consumers <= 4,
                  "consumers must be between 1 and 4, beside the warpgroup that loads");
    static_assert(CFG.B_r == 64 * CFG.consumers * CFG.m_tiles,
                  "B_r must be 64 * consumers * m_tiles, the rows of a wgmma for each tile of a "
                  "warpgroup");
    static_assert(CFG.B_c >= 16 && CFG.B_c <= 256 && CFG.B_c % 16 == 0,
                  "B_c must be a multiple of 16 between 16 and 256, columns of one wgmma and its "
                  "k-steps");
    static_assert(CFG.stages >= 1 && CFG.stages <= 8, "stages must be between 1 and 8");
    static_assert(CFG.q_stages == 1 || CFG.q_stages == 2,
                  "q_stages must be 1 or 2: a CTA works on one tile and may have the next one "
                  "loaded");
    static_assert(CFG.consumers > 1 || !CFG.pingpong,
                  "pingpong needs at least 2 consumers to take turns");
    static_assert(CFG.overlap || !CFG.pin,
                  "pin needs overlap: without it there is no product to keep the exponentials "
                  "before");
    static_assert(!CFG.pin || CFG.rescale != Rescale::TRUST,
                  "pin cannot be with trusting_rescale, whose exponentials go straight to P, which "
                  "the last product has to have read");
    static_assert(CFG.overlap || CFG.rescale != Rescale::BEFORE_PRODUCT,
                  "early_rescale needs overlap: without it the rescale is before the product "
                  "anyway");
    static_assert(!CFG.carry ||
                      (CFG.overlap && CFG.q_stages == 2 && CFG.scheduler != Scheduler::SINGLE),
                  "carry needs overlap, q_stages 2 and a scheduler that gives a CTA several tiles");
    static_assert(CFG.q_stages == 1 || CFG.scheduler != Scheduler::SINGLE,
                  "q_stages 2 needs a scheduler that gives a CTA several tiles");
    static_assert(CFG.order != Order::PAIRED || CFG.scheduler == Scheduler::STATIC,
                  "the paired order needs the static scheduler: a CTA takes both tiles of a pair");
    static_assert(CFG.v_stages >= 0 && CFG.v_stages <= 8 && CFG.v_stages != CFG.stages,
                  "v_stages must be 0, for as many as stages, or another number up to 8");
    static_assert(CFG.m_tiles == 1 || CFG.m_tiles == 2,
                  "m_tiles must be 1 or 2: more accumulators than that no thread has registers "
                  "for");
    static_assert(CFG.cluster == 1 || CFG.cluster == 2,
                  "cluster must be 1 or 2, CTAs that share their keys and values");
    static_assert(CFG.ctas == 1 || (CFG.consumers == 1 && CFG.ctas >= 2 && CFG.ctas <= 4) ||
                      (CFG.consumers == 2 && CFG.ctas == 2),
                  "ctas must be 1; or up to 4 with 1 consumer, or 2 with 2: more leave too few "
                  "registers");
    static_assert(!CFG.split_diagonal || CFG.B_c % 32 == 0,
                  "split_diagonal needs B_c to be a multiple of 32, for whole fragments in either "
                  "half");
};
