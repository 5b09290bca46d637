// Configs that cannot run, refused at compile time.  The Python constraints of the family
// refuse the same ones before compiling, with the same sentences.
#pragma once

#include "common/chunks.cuh"
#include "decode/config.cuh"

namespace fa_tune::decode {

template <DecodeConfig CFG>
struct Constraints {
    static constexpr int kColumns = CFG.kv_type == KVType::E4M3 ? 16 : 8;  // of a chunk
    static constexpr int kChunks = chunks_at_once(CFG.padded_d() / kColumns);
    static constexpr int kChunksV = chunks_at_once(CFG.padded_d_v() / kColumns);

    static_assert(CFG.d_head >= 32 && CFG.d_head <= 256 && CFG.d_head % 8 == 0,
                  "d_head must be a multiple of 8 between 32 and 256");
    static_assert(CFG.d_v() >= 32 && CFG.d_v() <= 256 && CFG.d_v() % 8 == 0,
                  "d_head_v must be 0, as d_head, or a multiple of 8 between 32 and 256");
    static_assert(CFG.kv_type != KVType::E4M3 || (CFG.d_head % 64 == 0 && CFG.d_v() % 64 == 0),
                  "e4m3 needs multiples of 64 as d_head and d_head_v: half of the chunks");
    static_assert(CFG.n_warps >= 1 && CFG.n_warps <= 16, "n_warps must be between 1 and 16");
    static_assert(CFG.row_warps >= 1 && CFG.n_warps % CFG.row_warps == 0,
                  "row_warps must divide n_warps: each group of so many warps has keys of its own");
    static_assert(CFG.B_r >= 16 && CFG.B_r % (16 * CFG.row_warps) == 0,
                  "B_r must be a multiple of 16 * row_warps, so that every warp has whole 16-row "
                  "mma tiles");
    static_assert(
        CFG.B_r / CFG.row_warps * (CFG.d_head > CFG.d_v() ? CFG.d_head : CFG.d_v()) <= 4096,
        "Q and O of a warp's rows must fit its registers: rows times d_head at most 4096");
    static_assert(CFG.B_c >= 16 && CFG.B_c % (16 * (CFG.n_warps / CFG.row_warps)) == 0,
                  "B_c must be a multiple of 16 keys for each group of warps");
    // A pass copies 32 * row_warps chunks.
    static_assert(
        16 * kChunks % (32 * CFG.row_warps) == 0 && 16 * kChunksV % (32 * CFG.row_warps) == 0,
        "the 16-byte chunks of 16 keys must divide evenly among the threads of row_warps");
    static_assert(CFG.stages >= 2 && CFG.stages <= 8, "stages must be between 2 and 8");
    static_assert(CFG.ctas_per_sm >= 1 && CFG.ctas_per_sm <= 8,
                  "ctas_per_sm must be between 1 and 8");
    static_assert(CFG.min_blocks >= 1 && CFG.min_blocks <= 1024,
                  "min_blocks must be between 1 and 1024");
    static_assert(CFG.cluster == 1 || CFG.cluster == 2 || CFG.cluster == 4 || CFG.cluster == 8,
                  "cluster must be 1, 2, 4 or 8");
    static_assert(
        CFG.cluster == 1 || (CFG.min_blocks == 1 && !CFG.aligned && CFG.combine == Combine::LAST &&
                             CFG.tile_keys == 0 && !CFG.by_rows),
        "with a cluster for each tile there are no aligned, min_blocks, combine, tile_keys and "
        "by_rows to choose");
    static_assert(!CFG.sectors || CFG.d_head % (64 * kColumns / 8) != 0 ||
                      CFG.d_v() % (64 * kColumns / 8) != 0,
                  "rows of whole lines of 128 bytes have no sectors to choose");
    static_assert(
        CFG.order == TileOrder::SHARES ||
            (CFG.cluster == 1 && !CFG.aligned && CFG.min_blocks == 1 &&
             CFG.combine == Combine::LAST && CFG.tile_keys == 0),
        "whole tiles leave no cluster, aligned, min_blocks, combine and tile_keys to choose");
    static_assert(CFG.tile_keys >= 0 && CFG.tile_keys <= 1024,
                  "tile_keys must be between 0 and 1024");
};

}  // namespace fa_tune::decode
