// The parts that the CTAs of a tile have in memory make the result: whoever counts the last part
// combines them, or the first CTAs of the tile do together.
//
//     CTA   part in memory -> count -> is it the last?  -> combine            combine_if_last
//     CTA   part in memory -> count -> are all there?   -> combine a share    combine_together
#pragma once

#include "decode/layout.cuh"
#include "decode/together.cuh"
#include "ptx/shared_words.cuh"

namespace fa_tune::decode {

// Quads of columns that a thread has under way at a time.  With few rows that gains less than its
// code costs, which comes from memory, too.
template <DecodeConfig CFG>
__device__ __forceinline__ constexpr int items_at_a_time() {
    if (CFG.tile_keys == 0 || CFG.B_r == 16) return 1;
    const int own = CFG.B_r * CFG.d_v() / 4 / Layout<CFG>::kThreads;
    return own < 1 ? 1 : own > 4 ? 4 : own;
}

// Of the CTAs that have a part of the tile, the one that is done last combines them, and leaves the
// counter as it was.
template <DecodeConfig CFG, WorkloadTraits TRAITS>
__device__ __forceinline__ void combine_if_last(const DecodeParams& p, unsigned smem,
                                                const Tile& tile, const TileRows& rows) {
    using L = Layout<CFG>;
    unsigned* const counter = p.counters + tile.first_cta;
    __syncthreads();
    if (threadIdx.x == 0) {
        // With what the barrier has shown to this thread.
        const unsigned before = ptx::atom_add_acq_rel(counter, 1);
        const bool last = before + 1 == static_cast<unsigned>(tile.parts());
        if (last) *counter = 0;
        ptx::st_shared(smem + L::kWord, last);
    }
    __syncthreads();
    if (!ptx::ld_shared(smem + L::kWord)) return;
    using Elem = mma_sync::Element<CFG.dtype>;
    const Parts<CFG.d_v()> memory(p);
    if constexpr (CFG.by_rows) {
        combine_by_rows<Elem, TRAITS, CFG.d_v(), CFG.B_r, L::kThreads>(p, memory, tile, rows);
    } else {
        combine_rows<Elem, TRAITS, CFG.d_v(), L::kThreads, items_at_a_time<CFG>()>(
            p, memory, tile, rows, 0, rows.count, threadIdx.x);
    }
}

// The CTAs that have a part of the tile combine it together, if there is enough to combine.
template <DecodeConfig CFG, WorkloadTraits TRAITS>
__device__ __forceinline__ void combine_together(const DecodeParams& p, unsigned smem,
                                                 const Tile& tile, const TileRows& rows) {
    using L = Layout<CFG>;
    using Elem = mma_sync::Element<CFG.dtype>;
    const QuadShares<L::kThreads> shares(tile.parts(), rows.count * (CFG.d_v() / 4));
    if (shares.number == 1) return combine_if_last<CFG, TRAITS>(p, smem, tile, rows);
    const Words words{p.counters + tile.first_cta, static_cast<unsigned>(tile.parts()),
                      static_cast<unsigned>(shares.number)};
    const int rank = blockIdx.x - tile.first_cta;
    bool own = false, last = false;
    __syncthreads();
    if (threadIdx.x == 0) {
        last = words.count();
        own = rank < shares.number && (last || words.await(rank));
        ptx::st_shared(smem + L::kWord, own + 2 * last);
    }
    __syncthreads();
    const int word = ptx::ld_shared(smem + L::kWord);  // 1: makes its share; 2: counted last
    const int share = threadIdx.x;
    bool gone = false;  // the CTA of this thread's share
    if (word & 2 && share < shares.number && share != rank) {
        gone = ptx::ld_acquire(words.first + share) & Words::kGone;
    }
    unsigned known = 0;  // asked for before the share is made, and needed after
    if (own) known = words.know(1);
    if (word & 1) make_share<Elem, TRAITS, CFG.d_v()>(p, smem, tile, rows, shares, rank);
    if (own) words.leave(known, 1);
    if (!(word & 2)) return;
    if (gone) gone = words.take(share);
    const unsigned taken = __ballot_sync(kAllLanes, gone);
    if (threadIdx.x % 32 == 0) {
        ptx::st_shared(smem + L::kRowSums + threadIdx.x / 8, taken);
        if (taken != 0) words.leave(words.know(__popc(taken)), __popc(taken));
    }
    __syncthreads();
    for (int first = 0; first < shares.number; first += 32) {
        unsigned left = ptx::ld_shared(smem + L::kRowSums + first / 8);
        for (int i = first; left != 0; ++i, left >>= 1) {
            if (left & 1) make_share<Elem, TRAITS, CFG.d_v()>(p, smem, tile, rows, shares, i);
        }
    }
}

}  // namespace fa_tune::decode
