// Configs and workloads that cannot run, refused at compile time.
#pragma once

#include "common/problem.cuh"
#include "sm80/bwd/config.cuh"

namespace fa_tune::sm80::backward {

// Warps with query rows of their own in dQ's product: two, or as many more as leave the others
// whole 16 columns.
__host__ __device__ constexpr int query_warps_of(int warps, int d_head) {
    int found = warps < 2 ? warps : 2;
    while (found < warps && d_head / 16 % (warps / found) != 0) found *= 2;
    return found;
}

__host__ __device__ constexpr bool is_head(int d) { return d >= 32 && d <= 256 && d % 32 == 0; }

template <Sm80BackwardConfig CFG, WorkloadTraits TRAITS>
struct Constraints {
    static constexpr int kWarps = CFG.n_warps, kColumnWarps = CFG.column_warps;
    static_assert(is_head(CFG.d_head) && is_head(CFG.d_v()),
                  "d_head and d_head_v must be multiples of 32 between 32 and 256");
    static_assert(CFG.B_r >= 32 && 128 % CFG.B_r == 0,
                  "B_r must be 32, 64 or 128, parts of the 128 rows that the workspace is padded "
                  "to");
    static_assert(kWarps >= 1 && kWarps <= 16 && (kWarps & (kWarps - 1)) == 0,
                  "n_warps must be 1, 2, 4, 8 or 16");
    static_assert(kColumnWarps > 0 && kWarps % kColumnWarps == 0,
                  "column_warps must be a power of two that divides n_warps");
    static_assert(CFG.B_c >= 16 && CFG.B_c % (16 * (kWarps / kColumnWarps)) == 0 &&
                      CFG.B_r % (16 * kColumnWarps) == 0 && CFG.d_head % (16 * kColumnWarps) == 0 &&
                      CFG.d_v() % (16 * kColumnWarps) == 0,
                  "B_c must be a multiple of 16 n_warps / column_warps, and B_r, d_head and "
                  "d_head_v of 16 column_warps");
    static_assert(CFG.two_pass || CFG.B_r % (16 * query_warps_of(kWarps, CFG.d_head)) == 0,
                  "B_r has too few rows for the warps of dQ's product in one pass");
    static_assert(CFG.stages == 1 || CFG.stages == 2, "stages must be 1 or 2");
    static_assert(CFG.ctas >= 1 && CFG.ctas <= 4, "ctas must be between 1 and 4");
    static_assert(!TRAITS.changes_scores() && !TRAITS.packed,
                  "soft caps, ALiBi, hooks and packed batches have no backward kernels");
};

}  // namespace fa_tune::sm80::backward
