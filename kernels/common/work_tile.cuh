// Which part of the work a number stands for.
//
// A work tile is a block of query rows of one head.  Tiles are numbered L2 head group by L2 head
// group; a group is neighbouring heads whose keys and values are meant to stay in L2 together.
//
//     linear          heads one after another, blocks of rows ascending
//     longest first   blocks of rows descending, all heads of the group for each:
//
//         groups of 2 heads, 3 blocks       number   0  1  2  3  4  5 |  6  7 ...
//                                           head     0  1  0  1  0  1 |  2  3 ...
//                                           block    2  2  1  1  0  0 |  2  2 ...
//
// With a causal mask the last rows see the most keys, and begin first.
#pragma once

namespace fa_tune {

// number / divisor.  kSmall: of a number below 2^20, in half the time; number + 1/2 over divisor is
// 0.5 / divisor or more away from integers, and what is computed less than that away from it.
template <bool kSmall>
__device__ __forceinline__ int quotient(int number, int divisor) {
    if constexpr (!kSmall) return number / divisor;
    return static_cast<int>((static_cast<float>(number) + 0.5f) / static_cast<float>(divisor));
}

// `head` counts through all batch elements.  Params: m_blocks of a head, total_heads,
// l2_head_group.
template <bool kSmall = false, class Params>
__device__ __forceinline__ void linear_tile(int number, const Params& p, int& m_block, int& head) {
    head = quotient<kSmall>(number, p.m_blocks);
    m_block = number - head * p.m_blocks;
}

// `number` may be beyond the last tile: then the position is of no tile.
template <bool kSmall = false, class Params>
__device__ __forceinline__ void longest_first_tile(int number, const Params& p, int& m_block,
                                                   int& head) {
    const int group_tiles = p.l2_head_group * p.m_blocks;
    const int group = quotient<kSmall>(number, group_tiles);
    const int in_group = number - group * group_tiles;
    const int first_head = group * p.l2_head_group;
    const int heads = max(1, min(p.l2_head_group, p.total_heads - first_head));
    const int from_last = quotient<kSmall>(in_group, heads);
    m_block = p.m_blocks - 1 - from_last;
    head = first_head + in_group - from_last * heads;
}

}  // namespace fa_tune
