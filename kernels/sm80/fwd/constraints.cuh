// Configs that cannot run, refused at compile time.  The Python constraints of the family
// refuse the same ones before compiling, with the same sentences.
#pragma once

#include "common/chunks.cuh"
#include "sm80/fwd/config.cuh"

namespace fa_tune::sm80 {

template <FlashForwardKernelConfig CFG>
struct Constraints {
    static constexpr int kChunks = chunks_at_once(CFG.d_head / 8);
    static constexpr int kChunksV = chunks_at_once(CFG.d_v() / 8);

    static_assert(CFG.n_warps >= 1 && CFG.n_warps <= 32,
                  "n_warps must be between 1 and 32, the warps of one CTA");
    static_assert(CFG.d_head == 32 ||
                      (CFG.d_head >= 64 && CFG.d_head <= 256 && CFG.d_head % 16 == 0),
                  "d_head must be 32 or a multiple of 16 between 64 and 256");
    static_assert(CFG.d_v() >= 32 && CFG.d_v() <= 256 && CFG.d_v() % 16 == 0,
                  "d_head_v must be 0, as d_head, or a multiple of 16 between 32 and 256");
    static_assert(CFG.B_r >= 16 && CFG.B_r % (16 * CFG.n_warps) == 0,
                  "B_r must be a multiple of 16 * n_warps, so that every warp owns whole 16-row "
                  "mma tiles");
    static_assert(CFG.B_c >= 16 && CFG.B_c % 16 == 0,
                  "B_c must be a multiple of 16, the k-step of the second product");
    // A pass copies 32 * n_warps chunks.
    static_assert(CFG.ping_pong || (CFG.B_r * kChunks % (32 * CFG.n_warps) == 0 &&
                                    CFG.B_c * kChunks % (32 * CFG.n_warps) == 0 &&
                                    CFG.B_c * kChunksV % (32 * CFG.n_warps) == 0),
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
    static_assert(CFG.kv_stages >= 1 && CFG.kv_stages <= 8, "kv_stages must be between 1 and 8");
    static_assert(CFG.kv_stages == 1 || CFG.eager_load_blocks,
                  "several kv_stages need eager_load_blocks, which fills them ahead");
    static_assert(CFG.rescale_threshold >= 0 && CFG.rescale_threshold <= 15,
                  "rescale_threshold must be between 0 and 15: P reaches 2 to its power, fp16 "
                  "ends at 65504");
    static_assert(CFG.rescale_threshold == 0 || CFG.optimized_softmax,
                  "a rescale_threshold needs optimized_softmax");
    static_assert(!CFG.ping_pong || CFG.n_warps == 8 || CFG.n_warps == 12,
                  "ping_pong needs 8 or 12 warps, two or three for each of the four schedulers");
    static_assert(!CFG.ping_pong || (CFG.async_copy && CFG.eager_load_blocks && CFG.swizzled),
                  "ping_pong needs async_copy, eager_load_blocks and swizzled: bulk copies are "
                  "all that");
    static_assert(!CFG.ping_pong || CFG.kv_stages >= 2,
                  "ping_pong needs two kv_stages or more: a place is refilled while the next is "
                  "read");
    static_assert(!CFG.ping_pong || (CFG.B_c <= 256 && 4 * CFG.B_r <= 256 * CFG.n_warps),
                  "ping_pong copies boxes of at most 256 rows: B_c and the rows of a turn must "
                  "fit");
    static_assert(!CFG.ping_pong || (CFG.Q_mma_load_K_tiles <= 1 && CFG.K_mma_load_K_tiles == 1 &&
                                     CFG.V_mma_load_K_tiles == 1 && !CFG.mma_double_buffer_loads),
                  "ping_pong streams fragments one k-tile ahead: load tiles must be 0 or 1 for Q, "
                  "1 for K and V, without buffer");
    static_assert(!(CFG.ping_pong && CFG.interleaved_softmax),
                  "ping_pong does its softmax between turns, so interleaved_softmax has no place "
                  "in it");
    static_assert(CFG.ping_pong || CFG.product_order == ProductOrder::MEASURED,
                  "a product_order is that of a turn, so it needs ping_pong");
};

}  // namespace fa_tune::sm80
