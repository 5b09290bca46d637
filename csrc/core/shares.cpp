#include "shares.h"

#include <algorithm>
#include <cstdint>

#include "problem.h"

namespace fa_tune::core {

namespace {

constexpr std::int64_t kMaxCtas = 1024;   // of a grid that has a counter for each
constexpr std::int64_t kMostPlaces = 64;  // of a tile besides its blocks, whatever the config

// The product of two sizes, or what is beyond kMaxTiles.
std::int64_t bounded(std::int64_t a, std::int64_t b) {
    return a > kMaxTiles / b ? kMaxTiles + 1 : a * b;
}

}  // namespace

Shares share_blocks(const fa_tune_launch_plan& plan, const fa_tune_problem& problem,
                    std::int64_t multiprocessors) {
    Shares found{};
    const std::int64_t rows = problem.seq_len_q * (problem.heads / problem.kv_heads);
    found.row_tiles = (rows + plan.tile_rows - 1) / plan.tile_rows;
    found.tiles = bounded(bounded(problem.batch, problem.kv_heads), found.row_tiles);
    const auto blocks_of = [&](std::int64_t keys) {
        return (keys + plan.share_keys - 1) / plan.share_keys;
    };
    const std::int64_t blocks = blocks_of(problem.seq_len_kv);
    const std::int64_t every = bounded(found.tiles, std::max<std::int64_t>(blocks, plan.cluster_x));
    if (std::max({rows, problem.seq_len_kv + 1, every}) > kMaxTiles) {
        fail(FA_TUNE_INVALID,
             "%s has too many blocks of keys, or rows of queries for a head of K; a "
             "launch takes %lld of either, and fewer keys of a sequence",
             key_of(problem).c_str(), wide(kMaxTiles));
    }
    std::int64_t keys = problem.seq_len_kv, first = 0;
    if (is_causal(problem) || (problem.window & FA_TUNE_WINDOW_RIGHT) != 0) {
        keys = std::min(keys, problem.seq_len_q + last_diagonal_of(problem));
    }
    if ((problem.window & FA_TUNE_WINDOW_LEFT) != 0) {
        first = std::max(0, first_diagonal_of(problem));
    }
    found.blocks = blocks_of(std::max<std::int64_t>(0, keys)) - first / plan.share_keys;
    found.blocks = std::max<std::int64_t>(1, found.blocks);
    const std::int64_t resident = multiprocessors * plan.ctas_per_sm;
    const std::int64_t most = std::max<std::int64_t>(1, std::min(resident, kMaxCtas));
    found.pitch = found.blocks;
    found.part_rows = std::min<std::int64_t>(rows, plan.tile_rows);
    if (plan.cluster_x > 1) {  // one for each tile
        found.share = (found.blocks + plan.cluster_x - 1) / plan.cluster_x;
        found.ctas = found.most_ctas = found.tiles * plan.cluster_x;
        return found;
    }
    found.most_ctas = std::min(most, every);
    if (plan.order != FA_TUNE_TILE_ORDER_SHARES) {  // whole tiles
        const bool alone = plan.order == FA_TUNE_TILE_ORDER_CTA_PER_TILE;
        const std::int64_t rounds = alone ? 1 : (found.tiles + most - 1) / most;
        found.ctas = (found.tiles + rounds - 1) / rounds;
        found.share = found.blocks;
        return found;
    }
    const std::int64_t all = found.tiles * found.blocks;
    found.share = std::max<std::int64_t>(plan.min_blocks, (all + most - 1) / most);
    if (plan.aligned != 0) {
        std::int64_t aligned = (found.tiles + most - 1) / most * found.blocks;
        if (found.tiles <= most) {
            const std::int64_t fewest = (found.blocks + plan.min_blocks - 1) / plan.min_blocks;
            const std::int64_t parts = std::min(most / found.tiles, fewest);
            aligned = (found.blocks + parts - 1) / parts;
        }
        if (aligned * 7 <= found.share * 8) {  // else too many CTAs would have nothing to do
            found.share = aligned;
            if (aligned < found.blocks) {
                found.pitch = (found.blocks + aligned - 1) / aligned * aligned;
            }
        }
    }
    found.ctas = (found.tiles * found.pitch + found.share - 1) / found.share;
    return found;
}

void share_on_device(const fa_tune_launch_plan& plan, const fa_tune_problem& problem,
                     Shares& shares) {
    const std::int64_t of_tile =
        (problem.seq_len_kv + plan.share_keys - 1) / plan.share_keys + kMostPlaces;
    if (plan.cluster_x == 1 && bounded(shares.tiles, of_tile) > kMaxTiles) {
        fail(FA_TUNE_INVALID,
             "%s has %lld tiles, which count for up to %lld blocks of keys where the "
             "device alone knows lengths; a launch takes %lld blocks",
             key_of(problem).c_str(), wide(shares.tiles), wide(of_tile), wide(kMaxTiles));
    }
    if (plan.order != FA_TUNE_TILE_ORDER_SHARES) return;
    shares.share = plan.min_blocks;
    shares.ctas = shares.most_ctas;
}

}  // namespace fa_tune::core
