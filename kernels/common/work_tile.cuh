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

// `head` counts through all batch elements.  Params: m_blocks of a head, total_heads,
// l2_head_group.
template <class Params>
__device__ __forceinline__ void linear_tile(int number, const Params& p, int& m_block, int& head) {
    head = number / p.m_blocks;
    m_block = number - head * p.m_blocks;
}

// `number` may be beyond the last tile: then the position is of no tile.
template <class Params>
__device__ __forceinline__ void longest_first_tile(int number, const Params& p, int& m_block,
                                                   int& head) {
    const int group_tiles = p.l2_head_group * p.m_blocks;
    const int group = number / group_tiles;
    const int in_group = number - group * group_tiles;
    const int first_head = group * p.l2_head_group;
    const int heads = max(1, min(p.l2_head_group, p.total_heads - first_head));
    const int from_last = in_group / heads;
    m_block = p.m_blocks - 1 - from_last;
    head = first_head + in_group - from_last * heads;
}

}  // namespace fa_tune
