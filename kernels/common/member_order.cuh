// The order of work of a packed batch.
//
// The lengths are on the device, so the host knows no more of the tiles than how many there can be
// at most.  Every CTA orders the sequences for itself, most keys first, which takes less than a
// second launch would.  All write the same list to global memory, and each reads what it wrote.
//
// With a causal mask the tiles of neighbours with about as many keys, and with as many queries, are
// handed out together, longest first, as those of a dense batch are:
//
//     two sequences of 2 heads, 2 blocks     number    0  1  2  3  4  5  6  7
//                                            sequence  0  0  1  1  0  0  1  1
//                                            head      0  1  0  1  0  1  0  1
//                                            block     1  1  1  1  0  0  0  0
#pragma once

#include "common/constants.cuh"
#include "common/sequence.cuh"
#include "common/work_tile.cuh"
#include "ptx/shared_words.cuh"
#include "ptx/tid.cuh"

namespace fa_tune {

// Of shared memory: the keys and tiles of sequences while they are ordered, and the tile found.
constexpr int kMostSorted = 256;
constexpr int kFoundAt = 8 * kMostSorted;
constexpr int kOrderBytes = kFoundAt + 32;
// Keys that make no difference to the order of sequences whose tiles are handed out together.
constexpr int kAlikeKeys = 128;
// Up to 2^kMostShift threads compare one sequence with the others, and not more than kComparing all
// sequences where it could be fewer.
constexpr int kMostShift = 3;
constexpr int kComparing = 128;

// Up to kMostSorted sequences, and no more than threads, are ordered by their keys; more are taken
// as they come.  `visit(place, member, tiles)` for each, by one of the CTA's threads, all of which
// call this.  Tiles are of kRows queries, those of one head.  `scratch`: kOrderBytes.  With
// kGrouped up to `most_in_group` sequences make a group.
template <int kThreads, int kRows, bool kGrouped, class Visit>
__device__ __forceinline__ void visit_members(const PackedBatch& batch, unsigned scratch,
                                              int most_in_group, Visit visit) {
    constexpr int kSorted = kThreads < kMostSorted ? kThreads : kMostSorted;
    const int count = batch.batch, thread = ptx::tid_x();
    const auto tiles_of = [](int queries) { return (queries + kRows - 1) / kRows; };
    const auto member_of = [&](int index) {
        PackedMember member{};
        member.first_query = batch.cu_seqlens_q[index];
        member.first_key = batch.cu_seqlens_kv[index];
        member.queries = batch.used_q != nullptr
                             ? batch.used_q[index]
                             : batch.cu_seqlens_q[index + 1] - member.first_query;
        member.keys = batch.used_kv != nullptr ? batch.used_kv[index]
                                               : batch.cu_seqlens_kv[index + 1] - member.first_key;
        member.index = index;
        member.group = 1;
        return member;
    };
    if (count <= kSorted) {
        // Few sequences have several threads each, which share the comparisons.
        int shift = 0;
        while (shift < kMostShift && (2 * count << shift) <= min(kThreads, kComparing)) ++shift;
        const int index = thread >> shift, part = thread - (index << shift);
        PackedMember member{};
        int keys = -2, tiles = 0;  // of nobody
        if (index < count) {
            member = member_of(index);
            tiles = tiles_of(member.queries);
            keys = tiles == 0 ? -1
                   : kGrouped ? (member.keys + kAlikeKeys - 1) / kAlikeKeys
                              : member.keys;
        }
        if (part == 0 && index < count + count % 2) {
            ptx::st_shared(scratch + 8 * index, keys);
            ptx::st_shared(scratch + 8 * index + 4, tiles);
        }
        __syncthreads();
        int place = 0, first_tile = 0;
        int alike = 0, alike_before = 0;
#pragma unroll 4
        for (int other = 2 * part; other < count; other += 2 << shift) {
            int words[4];  // keys and tiles of two
            ptx::ld_shared_v4(words, scratch + 8 * other);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int theirs = words[2 * i], their_tiles = words[2 * i + 1];
                bool equal = theirs == keys, before = theirs > keys;
                if constexpr (kGrouped) {
                    before |= equal && their_tiles > tiles;
                    equal &= their_tiles == tiles;
                    alike += equal ? 1 : 0;
                }
                const bool equal_before = equal && other + i < index;
                if constexpr (kGrouped) alike_before += equal_before ? 1 : 0;
                before |= equal_before;
                place += before ? 1 : 0;
                first_tile += before ? their_tiles : 0;
            }
        }
        for (int lanes = 1; lanes < 1 << shift; lanes *= 2) {
            place += __shfl_xor_sync(kAllLanes, place, lanes);
            first_tile += __shfl_xor_sync(kAllLanes, first_tile, lanes);
            if constexpr (kGrouped) {
                alike += __shfl_xor_sync(kAllLanes, alike, lanes);
                alike_before += __shfl_xor_sync(kAllLanes, alike_before, lanes);
            }
        }
        if (index >= count || part != 0) return;
        member.first_tile = first_tile;
        if constexpr (kGrouped) {
            const int full_groups = quotient<true>(alike_before, most_in_group);
            member.in_group = alike_before - full_groups * most_in_group;
            member.group = min(most_in_group, alike - (alike_before - member.in_group));
        }
        visit(place, member, tiles);
    } else {
        const int each = (count + kThreads - 1) / kThreads;
        const int begin = min(count, thread * each), end = min(count, begin + each);
        int own = 0;
        for (int index = begin; index < end; ++index) own += tiles_of(member_of(index).queries);
        ptx::st_shared(scratch + 4 * thread, own);
        __syncthreads();
        int first_tile = 0;
        for (int i = 0; i < thread; ++i) first_tile += ptx::ld_shared(scratch + 4 * i);
        for (int index = begin; index < end; ++index) {
            PackedMember member = member_of(index);
            const int tiles = tiles_of(member.queries);
            member.first_tile = first_tile;
            visit(index, member, tiles);
            first_tile += tiles;
        }
    }
}

// A tile of a packed batch.
struct PackedTile {
    int m_block;  // -1: there is none
    int head;
    int place;  // of its sequence in the order of work
    Sequence<true> sequence;
};

constexpr PackedTile kNoPackedTile{-1, 0, 0, {}};

// Which of the tiles of a sequence's group: of which sequence of the group, block and head.
struct GroupTile {
    int in_group, m_block, head;
};

// Tile `number` of those that a sequence's group has; `tiles`: of one head of one sequence. Params:
// heads, l2_head_group.
template <bool kLongestFirst, bool kSmall, class Params>
__device__ __forceinline__ GroupTile group_tile(int number, const PackedMember& member, int tiles,
                                                const Params& p) {
    struct {
        int m_blocks, total_heads, l2_head_group;
    } const all{tiles, p.heads * member.group, p.l2_head_group};
    GroupTile tile{0, 0, 0};
    if constexpr (kLongestFirst) {
        longest_first_tile<kSmall>(number, all, tile.m_block, tile.head);
        tile.in_group = quotient<kSmall>(tile.head, p.heads);
        tile.head -= tile.in_group * p.heads;
    } else {
        linear_tile<kSmall>(number, all, tile.m_block, tile.head);
    }
    return tile;
}

// The first tile of a sequence's group in so many heads.
__device__ __forceinline__ int first_of_group(const PackedMember& member, int tiles, int heads) {
    return (member.first_tile - member.in_group * tiles) * heads;
}

// Tile `number`, whose sequence is at `from` or later in the list, or in the same group.
template <bool kLongestFirst, class Params>
__device__ __forceinline__ PackedTile packed_tile(int number, int from, const Params& p) {
    const PackedMember* const members = p.packed.members;
    const int end = p.packed.batch;
    // It is most often one of the next few.  All are read at once, before the number is needed.
    constexpr int kNear = 6;
    const int all = members[end].first_tile;
    int near[kNear];
#pragma unroll
    for (int i = 0; i < kNear; ++i) near[i] = members[min(from + 1 + i, end)].first_tile;
    if (number >= all * p.heads) return kNoPackedTile;
    const int of_head = number / p.heads;
    int place = from;
#pragma unroll
    for (int i = 0; i < kNear; ++i) place += near[i] <= of_head ? 1 : 0;
    int beyond = place < from + kNear ? place + 1 : end;
#pragma unroll 1
    while (place + 1 < beyond) {  // the last one that begins at or before the tile
        const int middle = (place + beyond) / 2;
        if (members[middle].first_tile <= of_head) {
            place = middle;
        } else {
            beyond = middle;
        }
    }
    PackedMember member = members[place];
    const int tiles = members[place + 1].first_tile - member.first_tile;
    const GroupTile tile = group_tile<kLongestFirst, false>(
        number - first_of_group(member, tiles, p.heads), member, tiles, p);
    if (kLongestFirst && tile.in_group != member.in_group) {
        place += tile.in_group - member.in_group;
        member = members[place];
    }
    return {tile.m_block, tile.head, place, Sequence<true>::of(member)};
}

// How tiles are handed out: those of so many heads, of which so many neighbours together.
struct Handout {
    int heads, l2_head_group;
};

// Orders the sequences and finds tile `number`; kListed: makes the list, too, for persistent CTAs,
// whose first tiles have the numbers of CTAs, below 2^20.  Shared memory may be
// used again after the next __syncthreads().
template <int kThreads, int kRows, bool kLongestFirst, bool kListed>
__device__ __forceinline__ PackedTile order_members(const PackedBatch& batch, unsigned scratch,
                                                    int number, const Handout& p) {
    const unsigned found = scratch + kFoundAt;
    const int most_in_group = max(1, quotient<kListed>(p.l2_head_group, p.heads));
    if (threadIdx.x == 0) ptx::st_shared(found, -1);
    visit_members<kThreads, kRows, kLongestFirst && kListed>(
        batch, scratch, most_in_group, [&](int place, const PackedMember& member, int tiles) {
            const int of_group = number - first_of_group(member, tiles, p.heads);
            if (of_group >= 0 && of_group < tiles * p.heads * member.group) {
                const GroupTile tile =
                    group_tile<kLongestFirst, kListed>(of_group, member, tiles, p);
                if (tile.in_group == member.in_group) {
                    const int low[4] = {tile.m_block, tile.head, place, member.first_query};
                    const int high[4] = {member.queries, member.first_key, member.keys,
                                         member.index};
                    ptx::st_shared_v4(found, low);
                    ptx::st_shared_v4(found + 16, high);
                }
            }
            if constexpr (kListed) {
                batch.members[place] = member;
                if (place == batch.batch - 1) {
                    batch.members[place + 1].first_tile = member.first_tile + tiles;
                }
            }
        });
    __syncthreads();
    int low[4], high[4];
    ptx::ld_shared_v4(low, found);
    ptx::ld_shared_v4(high, found + 16);
    return {
        low[0], low[1], low[2], {low[3], high[0], high[1], high[2], high[2] - high[0], high[3]}};
}

// The first tile of a persistent CTA, after the list was made.
template <int kThreads, int kRows, bool kLongestFirst, class Params>
__device__ __forceinline__ PackedTile first_packed_tile(const Params& p, unsigned scratch) {
    return order_members<kThreads, kRows, kLongestFirst, true>(
        p.packed, scratch, static_cast<int>(blockIdx.x), {p.heads, p.l2_head_group});
}

// The tile of a CTA whose number along x is that of a tile of one head, and along y the head.
template <int kThreads, int kRows, bool kLongestFirst>
__device__ __forceinline__ PackedTile own_tile(const PackedBatch& batch, unsigned scratch) {
    PackedTile tile = order_members<kThreads, kRows, kLongestFirst, false>(
        batch, scratch, static_cast<int>(blockIdx.x), {1, 1});
    tile.head = blockIdx.y;
    return tile;
}

}  // namespace fa_tune
