// The CTAs of a tile combine its parts together, where one alone would have too much to read: a
// multiprocessor reads at most 28 bytes in a cycle from L2.
//
// The first of them have a share of the columns of O each.  A CTA that is done with its part waits
// a while for the others; the one that is done last tells all that wait, and each makes its share
// from all parts:
//
//     CTA 0  part  ......waits......  go -> share 0
//     CTA 1  part        ..waits....  go -> share 1
//     CTA 2        part, last: tells      -> share 2, and those of CTAs that have gone
//
// Nobody waits for ever, since nobody knows that all CTAs run at a time.
//
// Each CTA has a word in memory.  Below it counts the parts that are done of the tile that begins
// in this CTA and does not end there; above it says what the CTA was told, or did.  All words are 0
// before a launch and after it.
#pragma once

#include "decode/parts.cuh"
#include "ptx/global_words.cuh"
#include "ptx/shared_words.cuh"

namespace fa_tune::decode {

// How the quads of columns of a tile's rows are shared.  It hangs on what there is to combine, not
// on who does it, so that results are the same to the bit.  Powers of two, since a division takes
// its time.
template <int kThreads>
struct QuadShares {
    static constexpr int kFew = 9216;  // quads of parts, 144 KB, that one CTA combines as fast
    static constexpr int kLeast = 3;   // 8 quads of a share, 128 bytes of each part
    static constexpr int kWorth = 10;  // 1024 quads of parts for a share, 16 KB

    int quads;              // of all rows
    int bits;               // of the quads of a share, 1 << bits
    int number;             // of shares; 1: the CTA that is done last has it
    int groups;             // of threads, each of which has some of the parts
    int width_bits, width;  // of a group: threads, which have a quad each
    int parts;              // of a group, in order

    __device__ __forceinline__ QuadShares(int all_parts, int quads) : quads(quads) {
        // The last CTA of a tile has none: it may have another tile to go on with.
        const int most = log2(min(all_parts - 1, kThreads));
        bits = max(max(kLeast, kWorth - log2(all_parts)), log2(quads - 1) + 1 - most);
        number = all_parts * quads <= kFew ? 1 : ((quads - 1) >> bits) + 1;
        const int of_threads = min(max(0, log2(kThreads) - bits), log2(all_parts));
        groups = 1 << of_threads;
        width_bits = min(bits, log2(kThreads));
        width = 1 << width_bits;
        parts = ((all_parts - 1) >> of_threads) + 1;
    }

  private:
    // Rounded down; of 0: -1.
    __device__ __forceinline__ static int log2(int x) { return 31 - __clz(x); }
};

// The words of the CTAs of a tile.
struct Words {
    static constexpr unsigned kParts = 0xffff, kGo = 0x10000, kGone = 0x20000;
    static constexpr int kLooks = 32;  // at its word, to L2 and back each, before a CTA goes

    unsigned* const first;

    // Counts a part that is there, with what a barrier has shown to this thread; whether it is the
    // last one.
    __device__ __forceinline__ bool count(int parts) const {
        const unsigned before = ptx::atom_add_acq_rel(first, 1) & kParts;
        const bool last = before + 1 == static_cast<unsigned>(parts);
        if (last) ptx::red_and(first, ~kParts);
        return last;
    }
    // Waits for the last CTA's word; whether it has come.
    __device__ __forceinline__ bool await(int rank) const {
        bool go = false;
        for (int i = 0; i < kLooks && !go; ++i) go = ptx::ld_acquire(first + rank) & kGo;
        if (!go) go = ptx::atom_or_acq_rel(first + rank, kGone) & kGo;
        if (go) ptx::red_and(first + rank, kParts);
        return go;
    }
    // Tells another CTA; whether it has gone.
    __device__ __forceinline__ bool tell(int rank) const {
        const bool gone = ptx::atom_or_acq_rel(first + rank, kGo) & kGone;
        if (gone) ptx::red_and(first + rank, kParts);
        return gone;
    }
};

// The shares that a CTA makes: of those from `first` to `end` the ones whose bit is set in shared
// memory, where a word has 32.
struct OwnShares {
    int first, end;

    // Counts, waits and tells others, when all of this CTA's part is there.  By the first warp.
    template <int kThreads>
    __device__ __forceinline__ static OwnShares find(const Words& words, int parts, int rank,
                                                     const QuadShares<kThreads>& shares,
                                                     unsigned bits) {
        const int lane = threadIdx.x;
        bool last = false, goes = false;
        if (lane == 0) {
            last = words.count(parts);
            goes = !last && rank < shares.number && words.await(rank);
        }
        __syncwarp();
        last = __any_sync(kAllLanes, last);
        goes = __any_sync(kAllLanes, goes);
        if (!last && !goes) return {0, 0};
        for (int from = 0; from < shares.number; from += 32) {
            const int share = from + lane;
            bool makes = share == rank;
            if (last && share < shares.number && !makes) makes = words.tell(share);
            const unsigned word = __ballot_sync(kAllLanes, makes);
            if (lane == 0) ptx::st_shared(bits + from / 8, word);
        }
        return last ? OwnShares{0, shares.number} : OwnShares{rank, rank + 1};
    }
};

// Adds kAtATime parts from the first on, as far as there are so many, all read at a time.
template <int kAtATime, int kDV>
__device__ __forceinline__ void add_parts(Combined& total, const Parts<kDV>& memory,
                                          const Tile& tile, int first, int end, int row, int quad) {
    // A tile's first part lies behind where the others would have it.
    const float* const sums_from = memory.row_sum(2 * (tile.first_cta + first), row);
    const float* const columns_from = memory.columns(2 * (tile.first_cta + first), row, quad);
    // Registers that are set under a condition alone would be kept from tile to tile.
    float sums[kAtATime][2] = {}, columns[kAtATime][4] = {};
#pragma unroll
    for (int i = 0; i < kAtATime; ++i) {
        if (first + i >= end) continue;
        const int places = i == 0 && first == 0 ? 1 : 2 * i;
        ptx::ld_global_cg_v2(sums[i], sums_from + places * memory.rows * 2);
        ptx::ld_global_cg_v4(columns[i], columns_from + places * memory.rows * kDV);
    }
    float highest = sums[0][0];
#pragma unroll
    for (int i = 1; i < kAtATime; ++i) {
        if (first + i < end) highest = fmaxf(highest, sums[i][0]);
    }
    total.raise_max(highest);
#pragma unroll
    for (int i = 0; i < kAtATime; ++i) {
        if (first + i < end) total.add({sums[i][0], sums[i][1]}, columns[i]);
    }
}

// What groups of threads have of the same columns: first those of a warp, then warps, in shared
// memory.
template <int kThreads>
struct GroupSums {
    struct alignas(16) Columns {
        float o[4];
    };
    struct alignas(8) Sum {
        float max, sum;
    };
    Columns* const columns;
    Sum* const sums;

    __device__ __forceinline__ explicit GroupSums(unsigned smem)
        : columns(static_cast<Columns*>(__cvta_shared_to_generic(smem))),
          sums(static_cast<Sum*>(__cvta_shared_to_generic(smem + sizeof(Columns) * kThreads))) {}

    // Leaves the sums of all groups in the threads of the first one.  By all threads of a CTA.
    __device__ __forceinline__ void add_up(Combined& total,
                                           const QuadShares<kThreads>& shares) const {
        for (int lanes = 16; lanes >= shares.width; lanes /= 2) add_lanes(total, lanes);
        columns[threadIdx.x] = {{total.o[0], total.o[1], total.o[2], total.o[3]}};
        sums[threadIdx.x] = {total.max, total.sum};
        __syncthreads();
        const int step = max(shares.width, 32), all = shares.groups << shares.width_bits;
        if (static_cast<int>(threadIdx.x) < shares.width) add_warps(total, step, all);
        __syncthreads();
    }

  private:
    __device__ __forceinline__ static void add_lanes(Combined& total, int lanes) {
        const Sum sum = {__shfl_xor_sync(kAllLanes, total.max, lanes),
                         __shfl_xor_sync(kAllLanes, total.sum, lanes)};
        float o[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) o[i] = __shfl_xor_sync(kAllLanes, total.o[i], lanes);
        total.raise_max(sum.max);
        total.add({sum.max, sum.sum}, o);
    }
    __device__ __forceinline__ void add_warps(Combined& total, int step, int all) const {
        float highest = total.max;
        for (int i = threadIdx.x + step; i < all; i += step) highest = fmaxf(highest, sums[i].max);
        total.raise_max(highest);
        for (int i = threadIdx.x + step; i < all; i += step) {
            const Sum sum = sums[i];
            const Columns part = columns[i];
            total.add({sum.max, sum.sum}, part.o);
        }
    }
};

// A share of a tile, by all threads of a CTA.
template <class Elem, WorkloadTraits TRAITS, int kDV, int kThreads>
__device__ __forceinline__ void make_share(const DecodeParams& p, unsigned smem, const Tile& tile,
                                           const TileRows& rows, const QuadShares<kThreads>& shares,
                                           int share) {
    constexpr int kQuads = kDV / 4, kAtATime = 4;
    const Parts<kDV> memory(p);
    const int group = static_cast<int>(threadIdx.x) >> shares.width_bits;
    const int first_part = group * shares.parts;
    const int end_part = min(first_part + shares.parts, tile.parts());
    const int end = min(shares.quads, (share + 1) << shares.bits);
    for (int first = share << shares.bits; first < end; first += shares.width) {
        const int item = first + threadIdx.x - (group << shares.width_bits);
        const bool has = item < end && group < shares.groups;
        const int row = item / kQuads, quad = item % kQuads;
        Combined total(rows.softmax_scale * kLog2E);
        for (int i = first_part; has && i < end_part; i += kAtATime) {
            add_parts<kAtATime>(total, memory, tile, i, end_part, row, quad);
        }
        if (shares.groups > 1) GroupSums<kThreads>(smem).add_up(total, shares);
        if (has && group == 0) write_result<Elem, TRAITS>(p, rows, row, quad, total);
    }
}

}  // namespace fa_tune::decode
