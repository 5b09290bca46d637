// The order of work of a packed batch.
//
// The lengths are on the device, so the host knows no more of the tiles than how many there can be
// at most.  Every CTA orders the sequences for itself, most keys first, which takes less than a
// second launch would.  All write the same list to global memory, and each reads what it wrote.
#pragma once

#include "common/sequence.cuh"
#include "common/work_tile.cuh"
#include "ptx/shared_words.cuh"

namespace fa_tune {

// Of shared memory: the keys and tiles of sequences while they are ordered, and the one found.
constexpr int kMostSorted = 256;
constexpr int kFoundAt = 8 * kMostSorted;
constexpr int kOrderBytes = kFoundAt + 32;

// Up to kMostSorted sequences, and no more than threads, are ordered by their keys; more are taken
// as they come.  `visit(place, member, tiles)` for each, by one of the CTA's threads, all of which
// call this.  Tiles are of kRows queries, those of one head.  `scratch`: kOrderBytes.
template <int kThreads, int kRows, class Visit>
__device__ __forceinline__ void visit_members(const PackedBatch& batch, unsigned scratch,
                                              Visit visit) {
    constexpr int kSorted = kThreads < kMostSorted ? kThreads : kMostSorted;
    const int count = batch.batch, thread = threadIdx.x;
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
        return member;
    };
    if (count <= kSorted) {
        PackedMember member{};
        int keys = -2, tiles = 0;  // of nobody
        if (thread < count) {
            member = member_of(thread);
            tiles = tiles_of(member.queries);
            keys = tiles > 0 ? member.keys : -1;
        }
        if (thread < count + count % 2) {
            ptx::st_shared(scratch + 8 * thread, keys);
            ptx::st_shared(scratch + 8 * thread + 4, tiles);
        }
        __syncthreads();
        if (thread >= count) return;
        int place = 0;
#pragma unroll 4
        for (int other = 0; other < count; other += 2) {
            int words[4];  // keys and tiles of two
            ptx::ld_shared_v4(words, scratch + 8 * other);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int theirs = words[2 * i];
                const bool before = theirs > keys || (theirs == keys && other + i < thread);
                place += before ? 1 : 0;
                member.first_tile += before ? words[2 * i + 1] : 0;
            }
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

// Tile `in_member` of all heads of a sequence with so many tiles of each, as common/work_tile.cuh
// has it; its heads are all that there are.
template <bool kLongestFirst, class Params>
__device__ __forceinline__ PackedTile tile_of(int in_member, int place, const PackedMember& member,
                                              int tiles, const Params& p) {
    struct {
        int m_blocks, total_heads, l2_head_group;
    } const heads{tiles, p.heads, p.l2_head_group};
    PackedTile tile{0, 0, place, Sequence<true>::of(member)};
    if constexpr (kLongestFirst) {
        longest_first_tile(in_member, heads, tile.m_block, tile.head);
    } else {
        linear_tile(in_member, heads, tile.m_block, tile.head);
    }
    return tile;
}

// Tile `number`, whose sequence is at `from` or later in the list.
template <bool kLongestFirst, class Params>
__device__ __forceinline__ PackedTile packed_tile(int number, int from, const Params& p) {
    const PackedMember* const members = p.packed.members;
    int place = from, end = p.packed.batch;
    if (number >= members[end].first_tile * p.heads) return {-1, 0, 0, {}};
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
    return tile_of<kLongestFirst>(number - member.first_tile * p.heads, place, member,
                                  members[place + 1].first_tile - member.first_tile, p);
}

// What a CTA finds while it orders the sequences: the one that its first tile belongs to.
struct FoundMember {
    int place;  // -1: there is no such tile
    int tiles;
    PackedMember member;
};

// Finds the sequence of tile `number`, of those of `heads` heads; kListed: makes the list, too.
// Shared memory may be used again after the next __syncthreads().
template <int kThreads, int kRows, bool kListed>
__device__ __forceinline__ FoundMember order_members(const PackedBatch& batch, unsigned scratch,
                                                     int number, int heads) {
    const unsigned found = scratch + kFoundAt;
    if (threadIdx.x == 0) ptx::st_shared(found, -1);
    visit_members<kThreads, kRows>(
        batch, scratch, [&](int place, const PackedMember& member, int tiles) {
            const int in_member = number - member.first_tile * heads;
            if (in_member >= 0 && in_member < tiles * heads) {
                const int low[4] = {place, tiles, member.first_tile, member.first_query};
                const int high[4] = {member.queries, member.first_key, member.keys, 0};
                ptx::st_shared_v4(found, low);
                ptx::st_shared_v4(found + 16, high);
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
    return {low[0], low[1], {low[2], low[3], high[0], high[1], high[2], {}}};
}

// The first tile of a persistent CTA, after the list was made.
template <int kThreads, int kRows, bool kLongestFirst, class Params>
__device__ __forceinline__ PackedTile first_packed_tile(const Params& p, unsigned scratch) {
    const int number = blockIdx.x;
    const FoundMember found =
        order_members<kThreads, kRows, true>(p.packed, scratch, number, p.heads);
    if (found.place < 0) return {-1, 0, 0, {}};
    return tile_of<kLongestFirst>(number - found.member.first_tile * p.heads, found.place,
                                  found.member, found.tiles, p);
}

// The tile of a CTA whose number along x is that of a tile of one head, and along y the head.
template <int kThreads, int kRows, bool kLongestFirst>
__device__ __forceinline__ PackedTile own_tile(const PackedBatch& batch, unsigned scratch) {
    const int number = blockIdx.x;
    const FoundMember found = order_members<kThreads, kRows, false>(batch, scratch, number, 1);
    if (found.place < 0) return {-1, 0, 0, {}};
    const int in_member = number - found.member.first_tile;
    const int m_block = kLongestFirst ? found.tiles - 1 - in_member : in_member;
    return {m_block, static_cast<int>(blockIdx.y), found.place, Sequence<true>::of(found.member)};
}

}  // namespace fa_tune
