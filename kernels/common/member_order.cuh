// The order of work of a packed batch.
//
// The lengths are on the device, so the host knows no more of the tiles than how many there can be
// at most.  Every CTA orders the sequences for itself, most keys first, which takes less than a
// second launch would.
#pragma once

#include "common/sequence.cuh"
#include "common/work_tile.cuh"
#include "ptx/shared_words.cuh"

namespace fa_tune {

// Up to so many sequences are ordered by their keys; more are taken as they come.
constexpr int kMostSorted = 256;
// Shared memory that ordering them takes; with more of them, a word of each thread.
constexpr int kOrderBytes = 8 * kMostSorted;

// The sequences in the order of work, most keys first: `visit(place, member, first_tile, tiles)`
// for each, by one of the CTA's threads, all of which call this.  Tiles are of kRows queries, those
// of one head.  `scratch`: kOrderBytes of shared memory, free again after a __syncthreads().
template <int kThreads, int kRows, class Visit>
__device__ __forceinline__ void visit_members(const PackedBatch& batch, unsigned scratch,
                                              Visit visit) {
    const int count = batch.batch, thread = threadIdx.x;
    if (count <= kMostSorted) {
        for (int member = thread; member < count + count % 2; member += kThreads) {
            int keys = -2, tiles = 0;  // of nobody
            if (member < count) {
                tiles = (queries_of(batch, member) + kRows - 1) / kRows;
                keys = tiles > 0 ? keys_of(batch, member) : -1;
            }
            ptx::st_shared(scratch + 8 * member, keys);
            ptx::st_shared(scratch + 8 * member + 4, tiles);
        }
        __syncthreads();
        for (int member = thread; member < count; member += kThreads) {
            const int keys = ptx::ld_shared(scratch + 8 * member);
            const int tiles = ptx::ld_shared(scratch + 8 * member + 4);
            int place = 0, first_tile = 0;
#pragma unroll 4
            for (int other = 0; other < count; other += 2) {
                int words[4];  // keys and tiles of two
                ptx::ld_shared_v4(words, scratch + 8 * other);
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const int theirs = words[2 * i];
                    const bool before = theirs > keys || (theirs == keys && other + i < member);
                    place += before ? 1 : 0;
                    first_tile += before ? words[2 * i + 1] : 0;
                }
            }
            visit(place, member, first_tile, tiles);
        }
    } else {
        const int each = (count + kThreads - 1) / kThreads;
        const int begin = min(count, thread * each), end = min(count, begin + each);
        int own = 0;
        for (int member = begin; member < end; ++member) {
            own += (queries_of(batch, member) + kRows - 1) / kRows;
        }
        ptx::st_shared(scratch + 4 * thread, own);
        __syncthreads();
        int first_tile = 0;
        for (int i = 0; i < thread; ++i) first_tile += ptx::ld_shared(scratch + 4 * i);
        for (int member = begin; member < end; ++member) {
            const int tiles = (queries_of(batch, member) + kRows - 1) / kRows;
            visit(member, member, first_tile, tiles);
            first_tile += tiles;
        }
    }
}

// The same as a list in global memory, which all CTAs write alike; each may read it after a
// __syncthreads().
template <int kThreads, int kRows>
__device__ __forceinline__ void list_members(const PackedBatch& batch, unsigned scratch) {
    visit_members<kThreads, kRows>(
        batch, scratch, [&](int place, int member, int first_tile, int tiles) {
            batch.members[place] = {member, first_tile};
            if (place == batch.batch - 1) batch.members[place + 1] = {0, first_tile + tiles};
        });
}

// Which tile of a packed batch a number stands for.
struct PackedTile {
    int m_block;  // -1: there is no such tile
    int head;
    int member;
};

// That of a CTA whose number along x is the tile's of one head, without a list; the shared memory
// at `scratch`, kOrderBytes and 16 more, is free again.
template <int kThreads, int kRows, bool kLongestFirst>
__device__ __forceinline__ PackedTile own_tile(const PackedBatch& batch, unsigned scratch) {
    const unsigned found = scratch + kOrderBytes;
    if (threadIdx.x == 0) ptx::st_shared(found, -1);
    const int number = blockIdx.x;
    visit_members<kThreads, kRows>(
        batch, scratch, [&](int, int member, int first_tile, int tiles) {
            const int in_member = number - first_tile;
            if (in_member < 0 || in_member >= tiles) return;
            ptx::st_shared(found, kLongestFirst ? tiles - 1 - in_member : in_member);
            ptx::st_shared(found + 4, member);
        });
    __syncthreads();
    const PackedTile tile{ptx::ld_shared(found), static_cast<int>(blockIdx.y),
                          ptx::ld_shared(found + 4)};
    __syncthreads();
    return tile;
}

// In the order of the list; of a sequence as common/work_tile.cuh has it, whose heads are all of
// the groups there are.
template <bool kLongestFirst, class Params>
__device__ __forceinline__ PackedTile packed_tile(int number, const Params& p) {
    const PackedMember* const members = p.packed.members;
    int place = 0, end = p.packed.batch;
    if (number >= members[end].first_tile * p.heads) return {-1, 0, 0};
    const int of_head = number / p.heads;
#pragma unroll 1
    while (place + 1 < end) {  // the last one that begins at or before the tile
        const int middle = (place + end) / 2;
        if (members[middle].first_tile <= of_head) {
            place = middle;
        } else {
            end = middle;
        }
    }
    const PackedMember member = members[place];
    struct {
        int m_blocks, total_heads, l2_head_group;
    } const heads{members[place + 1].first_tile - member.first_tile, p.heads, p.l2_head_group};
    PackedTile tile{0, 0, member.index};
    const int in_member = number - member.first_tile * p.heads;
    if constexpr (kLongestFirst) {
        longest_first_tile(in_member, heads, tile.m_block, tile.head);
    } else {
        linear_tile(in_member, heads, tile.m_block, tile.head);
    }
    return tile;
}

}  // namespace fa_tune
