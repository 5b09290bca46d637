// Configs that cannot run, refused at compile time.  fa_tune/families/sm80.py refuses the same
// ones before compiling, with the same sentences.
#pragma once

#include "sm80/flash_forward_kernel_config.cuh"

template <FlashForwardKernelConfig CFG>
struct Constraints {
    static_assert(CFG.n_warps >= 1 && CFG.n_warps <= 32,
                  "n_warps must be between 1 and 32, the warps of one CTA");
    static_assert(CFG.d_head >= 32 && CFG.d_head <= 256 && CFG.d_head % 32 == 0,
                  "d_head must be a multiple of 32 between 32 and 256, whole groups of four "
                  "16-byte chunks");
    static_assert(CFG.B_r >= 16 && CFG.B_r % (16 * CFG.n_warps) == 0,
                  "B_r must be a multiple of 16 * n_warps, so that every warp owns whole 16-row "
                  "mma tiles");
    static_assert(CFG.B_c >= 16 && CFG.B_c % 16 == 0,
                  "B_c must be a multiple of 16, the k-step of the second product");
    // A pass copies 32 * n_warps chunks, as many of a row as the power of two in d_head / 8.
    static_assert(CFG.B_r * (CFG.d_head / 8 & -(CFG.d_head / 8)) % (32 * CFG.n_warps) == 0 &&
                      CFG.B_c * (CFG.d_head / 8 & -(CFG.d_head / 8)) % (32 * CFG.n_warps) == 0,
                  "the 16-byte chunks of a block must divide evenly among the threads");
    static_assert(CFG.async_copy || !CFG.eager_load_blocks,
                  "eager_load_blocks needs async_copy: an ordinary load cannot run ahead of the "
                  "arithmetic");
    static_assert(CFG.Q_mma_load_K_tiles >= 0 && (CFG.Q_mma_load_K_tiles == 0 ||
                                                  CFG.d_head / 16 % CFG.Q_mma_load_K_tiles == 0),
                  "Q_mma_load_K_tiles must be 0 or divide d_head / 16, the k-tiles of the first "
                  "product");
    static_assert(CFG.K_mma_load_K_tiles >= 0 && (CFG.K_mma_load_K_tiles == 0 ||
                                                  CFG.d_head / 16 % CFG.K_mma_load_K_tiles == 0),
                  "K_mma_load_K_tiles must be 0 or divide d_head / 16, the k-tiles of the first "
                  "product");
    static_assert(CFG.V_mma_load_K_tiles >= 0 &&
                      (CFG.V_mma_load_K_tiles == 0 || CFG.B_c / 16 % CFG.V_mma_load_K_tiles == 0),
                  "V_mma_load_K_tiles must be 0 or divide B_c / 16, the k-tiles of the second "
                  "product");
};
