// Which blocks of queries the idle warps of a CTA for dK and dV prepare and finish.
//
// In one pass, blocks of 128 queries are prepared before the launch for dK and dV and finished
// after it.  With `idle_warps` most are within it, by the three warps that neither load nor
// compute: under products, and while L2 has the sums.  Blocks of a head go with the tiles of its KV
// head, evenly; a tile's CTA prepares those of the tile `distance` after it, and finishes those of
// the tile as long before.
//
//     tiles               0 ...  distance ...            tiles - distance ...
//     prepared by         first launch     CTA `distance` tiles before
//     finished by         CTA `distance` tiles after         | last launch
//
// `distance` is the tiles of a group of heads and those at work at a time: when a CTA looks at a
// block the tiles that it waits for are done, or nearly.  It waits for CTAs of lower numbers alone,
// which began before it.
#pragma once

#include "common/backward/mask.cuh"
#include "common/backward/tile_order.cuh"

namespace fa_tune::sm90::backward {

constexpr int kIdleThreads = 96;
constexpr int kIdleBytes = 16 * 16 * kIdleThreads;  // of shared memory, for copies

struct QueryShares {
    int tiles, blocks;  // of a KV head
    int of_tile;        // blocks
    int all_tiles;
    int distance;

    template <bool kPacked>
    __device__ __forceinline__ static QueryShares of(const BackwardParams& p, int keys_of_tile) {
        const auto order = TileOrder<kPacked>::of_keys(p, keys_of_tile);
        const int blocks = p.heads_per_kv * (p.padded_q / kBlockRows);
        return {order.m_blocks, blocks, (blocks + order.m_blocks - 1) / order.m_blocks,
                order.m_blocks * order.total_heads,
                order.l2_head_group * order.m_blocks + p.multiprocessors};
    }
    __device__ __forceinline__ int tile_of(int block) const {
        const int head = block / blocks;
        return head * tiles + (block - head * blocks) / of_tile;
    }
    // Of a tile, from `first` to before `end`; of a number that no tile has, none.
    __device__ __forceinline__ Range blocks_of(int tile) const {
        if (tile < 0 || tile >= all_tiles) return {0, 0};
        const int head = tile / tiles, first = (tile - head * tiles) * of_tile;
        return {head * blocks + min(first, blocks), head * blocks + min(first + of_tile, blocks)};
    }
    // How many of a KV head's blocks idle warps prepare.
    __device__ __forceinline__ int prepared_within(int head) const {
        return blocks - min(blocks, max(0, distance - head * tiles) * of_tile);
    }
};

}  // namespace fa_tune::sm90::backward
