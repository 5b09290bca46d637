// Configs and workloads that cannot run, refused at compile time.
#pragma once

#include "common/problem.cuh"
#include "sm90/bwd/config.cuh"

namespace fa_tune::sm90::backward {

template <Sm90BackwardConfig CFG, WorkloadTraits TRAITS>
struct Constraints {
    static_assert(CFG.d_head >= 32 && CFG.d_head <= 256 && CFG.d_head % 8 == 0,
                  "d_head must be a multiple of 8 between 32 and 256");
    static_assert(CFG.d_v() == CFG.d_head || (CFG.d_head == 192 && CFG.d_v() == 128),
                  "d_head_v must be 0, as d_head, or 128 at d_head 192");
    static_assert(CFG.d_head <= 128 || CFG.two_pass,
                  "d_head above 128 needs two_pass: with the 64 keys whose gradients fit in "
                  "registers, adds to sums of dQ take longer than all products");
    static_assert(CFG.d_head <= 128 || !CFG.dynamic, "d_head above 128 leaves no room for dynamic");
    static_assert(CFG.B_r == (CFG.d_head <= 64 ? 128 : 64),
                  "B_r must be 128 up to d_head 64 and 64 above, for two warpgroups to have up "
                  "to 64 x 64 of dQ each");
    static_assert(CFG.B_c == 128 || (CFG.B_c == 64 && CFG.d_head > 128),
                  "B_c must be 128, 64 keys for each of two warpgroups or, above d_head 128, for "
                  "both in turn, or 64 there");
    static_assert(CFG.q_stages == 2 || CFG.q_stages == 3, "q_stages must be 2 or 3");
    static_assert(!CFG.two_pass ||
                      (CFG.dq_keys >= 48 && CFG.dq_keys <= 128 && CFG.dq_keys % 16 == 0),
                  "dq_keys must be a multiple of 16 between 48 and 128");
    static_assert(!CFG.two_pass || CFG.padded_d() / 2 + CFG.dq_keys / 4 * 5 <= 224,
                  "dQ, S and dP of dq_keys keys need more registers than a thread has");
    static_assert(!CFG.same_step || !CFG.two_pass, "same_step has no dQ with two_pass");
    static_assert(!CFG.same_step || !CFG.turns, "warpgroups meet in same_step and take no turns");
    static_assert(CFG.cluster >= 1 && CFG.cluster <= 8, "cluster must be between 1 and 8");
    static_assert(CFG.cluster == 1 || (!CFG.dynamic && (CFG.d_head <= 128 || CFG.B_c == 64)),
                  "a cluster has one block of keys: no dynamic, and above d_head 128 B_c 64");
    static_assert(CFG.dq_cluster >= 1 && CFG.dq_cluster <= 8, "dq_cluster must be between 1 and 8");
    static_assert(CFG.dq_cluster == 1 || (CFG.two_pass && !CFG.dynamic),
                  "dq_cluster needs two_pass, and a tile for each cluster: no dynamic");
    static_assert(!TRAITS.hook || !TRAITS.alibi, "no hook comes after the bias of ALiBi");
};

}  // namespace fa_tune::sm90::backward
