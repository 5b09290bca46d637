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
// Of a batch whose sequences are found to be equal, so that numbers that are handed out when none
// is left are still below 2^20.
constexpr int kMostTilesOfEquals = 1 << 19;
// Keys that make no difference to the order of sequences whose tiles are handed out together.
constexpr int kAlikeKeys = 128;
// Up to 2^kMostShift threads compare one sequence with the others, and not more than kComparing all
// sequences where it could be fewer.
constexpr int kMostShift = 3;
constexpr int kComparing = 128;

// Who orders the sequences: all threads of a CTA, or others of its own with such members.
template <int kCtaThreads>
struct WholeCta {
    static constexpr int kThreads = kCtaThreads;
    static constexpr int kFirst = 0;  // thread of the CTA
    // After words that the thread has written to shared memory.
    __device__ __forceinline__ static void wrote() {}
    __device__ __forceinline__ static void sync() { __syncthreads(); }
};

// How many sequences come before one, and how many there are like it.
struct Rank {
    static constexpr int kBits = 10;  // of numbers up to kMostSorted

    int counts;      // of those before it, those like it, and those of these before it
    int first_tile;  // of one head

    __device__ __forceinline__ void count(bool before, bool alike, bool alike_before, int tiles) {
        counts += before ? 1 : 0;
        counts += alike ? 1 << kBits : 0;
        counts += alike_before ? 1 << 2 * kBits : 0;
        first_tile += before ? tiles : 0;
    }
    // The sum of those that neighbouring lanes counted, 2^shift each.
    __device__ __forceinline__ void sum(int shift) {
        for (int lanes = 1; lanes < 1 << shift; lanes *= 2) {
            counts += __shfl_xor_sync(kAllLanes, counts, lanes);
            first_tile += __shfl_xor_sync(kAllLanes, first_tile, lanes);
        }
    }
    __device__ __forceinline__ int place() const { return part(0); }
    __device__ __forceinline__ int alike() const { return part(1); }
    __device__ __forceinline__ int alike_before() const { return part(2); }

  private:
    __device__ __forceinline__ int part(int i) const {
        return counts >> i * kBits & (1 << kBits) - 1;
    }
};

// Up to kMostSorted sequences are ordered by their keys; more are taken as they come.
// `visit(place, member, tiles)` for each, by one of the team's threads, all of which call this.
// Tiles are of kRows queries, those of one head.  `scratch`: kOrderBytes.  With kGrouped up to
// `most_in_group` sequences make a group.
template <class Team, int kRows, bool kGrouped, class Visit>
__device__ __forceinline__ void visit_members(const PackedBatch& batch, unsigned scratch,
                                              int most_in_group, Visit visit) {
    constexpr int kThreads = Team::kThreads;
    const int count = batch.batch, thread = ptx::tid_x() - Team::kFirst;
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
    // What sequences are ordered by.
    const auto keys_of = [&](const PackedMember& member) {
        if (member.queries == 0) return -1;
        return kGrouped ? (member.keys + kAlikeKeys - 1) / kAlikeKeys : member.keys;
    };
    if (count <= kMostSorted) {
        // Few sequences have several threads each, which share the comparisons.
        int shift = 0;
        while (shift < kMostShift && (2 * count << shift) <= min(kThreads, kComparing)) ++shift;
        const int own = thread >> shift, part = thread - (own << shift);
        PackedMember member{};
#pragma unroll 1
        for (int round = (count - 1) / kThreads; round >= 0; --round) {
            const int index = round * kThreads + own;
            int keys = -2, tiles = 0;  // of nobody
            if (index < count) {
                member = member_of(index);
                tiles = tiles_of(member.queries);
                keys = keys_of(member);
            }
            if (part == 0 && index < count + count % 2) {
                ptx::st_shared(scratch + 8 * index, keys);
                ptx::st_shared(scratch + 8 * index + 4, tiles);
            }
        }
        Team::wrote();
        Team::sync();
#pragma unroll 1
        for (int first = 0; first < count; first += kThreads) {
            const int index = first + own;
            if (first > 0 && index < count) member = member_of(index);
            const int tiles = tiles_of(member.queries), keys = keys_of(member);
            Rank rank{0, 0};
#pragma unroll 4
            for (int other = 2 * part; other < count; other += 2 << shift) {
                int words[4];  // keys and tiles of two
                ptx::ld_shared_v4(words, scratch + 8 * other);
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const int theirs = words[2 * i], their_tiles = words[2 * i + 1];
                    bool alike = theirs == keys, before = theirs > keys;
                    if constexpr (kGrouped) {
                        before |= alike && their_tiles > tiles;
                        alike &= their_tiles == tiles;
                    }
                    const bool alike_before = alike && other + i < index;
                    before |= alike_before;
                    rank.count(before, kGrouped && alike, kGrouped && alike_before, their_tiles);
                }
            }
            rank.sum(shift);
            if (index >= count || part != 0) continue;
            member.first_tile = rank.first_tile;
            if constexpr (kGrouped) {
                const int full_groups = quotient<true>(rank.alike_before(), most_in_group);
                const int before_group = full_groups * most_in_group;
                member.in_group = rank.alike_before() - before_group;
                member.group = min(most_in_group, rank.alike() - before_group);
            }
            visit(rank.place(), member, tiles);
        }
    } else {
        const int each = (count + kThreads - 1) / kThreads;
        const int begin = min(count, thread * each), end = min(count, begin + each);
        int own = 0;
#pragma unroll 4
        for (int index = begin; index < end; ++index) own += tiles_of(member_of(index).queries);
        ptx::st_shared(scratch + 4 * thread, own);
        Team::wrote();
        Team::sync();
        int first_tile = 0;
#pragma unroll 4
        for (int i = 0; i < thread; ++i) first_tile += ptx::ld_shared(scratch + 4 * i);
#pragma unroll 2
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

// The sequences of a packed batch, if all are equal.
struct Equals {
    int queries, keys;  // of each
    bool possible;      // by the number of all rows

    template <int kRows, class Params>
    __device__ __forceinline__ static Equals of(const Params& p) {
        const PackedBatch& batch = p.packed;
        Equals equals{whole_quotient(p.seq_len_q, batch.batch),
                      whole_quotient(p.seq_len_kv, batch.batch), false};
        const long long tiles = static_cast<long long>(equals.m_blocks<kRows>()) * p.heads;
        equals.possible = batch.batch <= kMostSorted && p.seq_len_q > 0 &&
                          equals.queries * batch.batch == p.seq_len_q &&
                          equals.keys * batch.batch == p.seq_len_kv && batch.used_q == nullptr &&
                          batch.used_kv == nullptr && tiles * batch.batch < kMostTilesOfEquals;
        return equals;
    }

    __device__ __forceinline__ Sequence<true> sequence(int index) const {
        return {index * queries, queries, index * keys, keys, keys - queries, index};
    }

    // Tile `number`, below 2^20, in the order of a dense batch.  Its `place`: the sequence's
    // number.
    template <int kRows, bool kLongestFirst, class Params>
    __device__ __forceinline__ PackedTile tile(int number, const Params& p) const {
        const struct {
            int m_blocks, total_heads, l2_head_group;
        } dense{m_blocks<kRows>(), p.heads * p.packed.batch, p.l2_head_group};
        int m_block, head;
        if constexpr (kLongestFirst) {
            longest_first_tile<true>(number, dense, m_block, head);
        } else {
            linear_tile<true>(number, dense, m_block, head);
        }
        const int index = quotient<true>(head, p.heads);
        if (number >= dense.m_blocks * dense.total_heads) m_block = -1;
        return {m_block, head - index * p.heads, index, sequence(index)};
    }

  private:
    template <int kRows>
    __device__ __forceinline__ int m_blocks() const {
        return (queries + kRows - 1) / kRows;
    }
    // If it is whole and below 2^21: then rounding makes it no other.
    __device__ __forceinline__ static int whole_quotient(int number, int divisor) {
        return static_cast<int>(static_cast<float>(number) / static_cast<float>(divisor) + 0.5f);
    }
};

// How tiles are handed out: those of so many heads, of which so many neighbours together.
struct Handout {
    int heads, l2_head_group;
};

// The tile for `found_tile`.
__device__ __forceinline__ void tell_tile(unsigned found, const PackedTile& tile) {
    const Sequence<true>& own = tile.sequence;
    const int low[4] = {tile.m_block, tile.head, tile.place, own.first_query};
    const int high[4] = {own.n_queries, own.first_key, own.n_keys, own.index};
    ptx::st_shared_v4(found, low);
    ptx::st_shared_v4(found + 16, high);
}

// By a team: orders the sequences and finds tile `number`, which is there for `found_tile` when all
// have met.  kListed: makes the list, too, for persistent CTAs, whose first tiles have the numbers
// of CTAs, below 2^20.
template <class Team, int kRows, bool kLongestFirst, bool kListed>
__device__ __forceinline__ void order_members(const PackedBatch& batch, unsigned scratch,
                                              int number, const Handout& p) {
    const unsigned found = scratch + kFoundAt;
    const int most_in_group = max(1, quotient<kListed>(p.l2_head_group, p.heads));
    if (threadIdx.x == Team::kFirst) ptx::st_shared(found, -1);
    visit_members<Team, kRows, kLongestFirst && kListed>(
        batch, scratch, most_in_group, [&](int place, const PackedMember& member, int tiles) {
            const int of_group = number - first_of_group(member, tiles, p.heads);
            if (of_group >= 0 && of_group < tiles * p.heads * member.group) {
                const GroupTile tile =
                    group_tile<kLongestFirst, kListed>(of_group, member, tiles, p);
                if (tile.in_group == member.in_group) {
                    tell_tile(found, {tile.m_block, tile.head, place, Sequence<true>::of(member)});
                    Team::wrote();
                }
            }
            if constexpr (kListed) {
                batch.members[place] = member;
                if (place == batch.batch - 1) {
                    batch.members[place + 1].first_tile = member.first_tile + tiles;
                }
            }
        });
}

// Shared memory may be used again when all have read it.
__device__ __forceinline__ PackedTile found_tile(unsigned found) {
    int low[4], high[4];
    ptx::ld_shared_v4(low, found);
    ptx::ld_shared_v4(high, found + 16);
    return {
        low[0], low[1], low[2], {low[3], high[0], high[1], high[2], high[2] - high[0], high[3]}};
}

// The list, and the first tile of a persistent CTA.
template <class Team, int kRows, bool kLongestFirst, class Params>
__device__ __forceinline__ void list_members(const Params& p, unsigned scratch) {
    order_members<Team, kRows, kLongestFirst, true>(p.packed, scratch, static_cast<int>(blockIdx.x),
                                                    {p.heads, p.l2_head_group});
}

// The tile of a CTA whose number along x is that of a tile of one head, and along y the head.
template <int kThreads, int kRows, bool kLongestFirst>
__device__ __forceinline__ PackedTile own_tile(const PackedBatch& batch, unsigned scratch) {
    order_members<WholeCta<kThreads>, kRows, kLongestFirst, false>(
        batch, scratch, static_cast<int>(blockIdx.x), {1, 1});
    __syncthreads();
    PackedTile tile = found_tile(scratch + kFoundAt);
    tile.head = blockIdx.y;
    return tile;
}

}  // namespace fa_tune
