// The CTAs of a tile combine its parts together, where one alone would have too much to read: a
// multiprocessor reads at most 28 bytes in a cycle from L2.
//
// The first of them have a share of the columns of O each.  A CTA that is done with its part counts
// it and waits a while until all are there, then makes its share from all parts:
//
//     CTA 0  part  ......waits......  all there -> share 0
//     CTA 1  part        ..waits....  all there -> share 1
//     CTA 2        part, the last one           -> shares of CTAs that have gone
//
// Nobody waits for ever, since nobody knows that all CTAs run at a time.
//
// Each CTA has a word in memory.  It counts the parts that are there of the tile that begins in
// this CTA and does not end there, and the CTAs with a share of it that know that all are; and says
// whether the CTA itself, which may have a share of the tile before, has gone.  All words are 0
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
    static constexpr int kFew = 6144;  // quads of parts, 96 KB, that one CTA combines as fast
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
    // Parts that are counted, whether the word's own CTA has gone, and, above, CTAs that know.
    static constexpr unsigned kParts = 0x7fff, kGone = 0x8000, kKnows = 0x10000;
    static constexpr int kLooks = 32;  // at the count, to L2 and back each, before a CTA goes

    unsigned* const first;
    const unsigned parts;
    const unsigned sharers;

    // Counts a part that is there, with what a barrier has shown to this thread; whether it is the
    // last one.
    __device__ __forceinline__ bool count() const {
        return (ptx::atom_add_acq_rel(first, 1) & kParts) + 1 == parts;
    }
    // Waits for the last part; whether it has come.  If not, whoever counts it makes this share.
    __device__ __forceinline__ bool await(int rank) const {
        for (int i = 0; i < kLooks; ++i) {
            if ((ptx::ld_acquire(first) & kParts) == parts) return true;
        }
        ptx::atom_or_acq_rel(first + rank, kGone);
        // Either the last part comes behind this, and who counts it sees that the CTA has gone, or
        // it is there.
        const bool all = (ptx::atom_add_acq_rel(first, 0) & kParts) == parts;
        return all && take(rank);
    }
    // Whether a CTA had gone, and nobody has taken its share yet.
    __device__ __forceinline__ bool take(int rank) const {
        return ptx::atom_and_acq_rel(first + rank, ~kGone) & kGone;
    }
    // So many CTAs with a share know that all parts are there, or need not; gives what `leave` asks
    // for, in time.
    __device__ __forceinline__ unsigned know(unsigned number) const {
        return ptx::atom_add_acq_rel(first, number * kKnows);
    }
    // Leaves the word as it was, if they are the last ones.
    __device__ __forceinline__ void leave(unsigned known, unsigned number) const {
        if (known / kKnows + number == sharers) ptx::red_and(first, kGone);
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
