// One warp's share of a CTA's work: its rows of S, P and O, all in registers, its softmax, and
// where its lanes find Q and the blocks of K and V in shared memory.
//
//              keys n                           d_v
//            +---------+                     +---------+
//     rows   | S, P    |  = Q K^T     rows   | O       |  += P V
//            +---------+                     +---------+
//
//     s[m][n], o[m][n]   the 16x8 tile of rows 16 m and columns 8 n, an accumulator of mma
//     p[m][t]            the 16x16 tile of rows 16 m and keys 16 t, an A operand
//
// The products are in staged_products.cuh and turn_products.cuh, the way out for O in
// epilogue.cuh, the loops that bring the blocks in cp_async_mainloop.cuh and
// ping_pong_mainloop.cuh.
#pragma once

#include "common/problem.cuh"
#include "common/scores.cuh"
#include "common/sequence.cuh"
#include "common/swizzle.cuh"
#include "mma_sync/element.cuh"
#include "mma_sync/fragment_stream.cuh"
#include "mma_sync/mask.cuh"
#include "mma_sync/online_softmax.cuh"
#include "mma_sync/stale_max_softmax.cuh"
#include "ptx/ldmatrix.cuh"
#include "sm80/fwd/constraints.cuh"
#include "sm80/fwd/params.cuh"

namespace fa_tune::sm80 {

template <bool kFirst, typename First, typename Second>
struct Either {
    using Type = First;
};
template <typename First, typename Second>
struct Either<false, First, Second> {
    using Type = Second;
};

// How Q's rows, O's, and a block of keys and of values lie in shared memory.
template <typename QTile_, typename OTile_, typename KTile_, typename VTile_>
struct Tiles {
    using QTile = QTile_;
    using OTile = OTile_;
    using KTile = KTile_;
    using VTile = VTile_;
};

template <FlashForwardKernelConfig CFG, WorkloadTraits TRAITS, typename Layouts>
struct WarpTile : Constraints<CFG> {
    using QTile = typename Layouts::QTile;
    using OTile = typename Layouts::OTile;
    static constexpr int kRowsPerWarp = CFG.B_r / CFG.n_warps;
    static constexpr int kTilesM = kRowsPerWarp / 16;  // 16-row tiles of S, P and O
    static constexpr int kTilesS = CFG.B_c / 8;        // 8-column tiles of S
    static constexpr int kTilesO = CFG.d_v() / 8;      // 8-column tiles of O
    static constexpr int kStepsQK = CFG.d_head / 16;   // k-tiles of S = Q K^T
    static constexpr int kStepsPV = CFG.B_c / 16;      // k-tiles of O += P V
    static constexpr bool kQStaysInRegisters = CFG.Q_mma_load_K_tiles == 0;
    static constexpr bool kMasked = TRAITS.diagonal() || TRAITS.ragged;
    static constexpr bool kBuffer = CFG.mma_double_buffer_loads;

    using Elem = mma_sync::Element<CFG.dtype>;
    using QStream = mma_sync::FragmentStream<kStepsQK, CFG.Q_mma_load_K_tiles, kTilesM, kBuffer>;
    using Online = mma_sync::OnlineSoftmax<Elem, kTilesM, kTilesS, kTilesO, CFG.optimized_softmax,
                                           CFG.rescale_threshold>;
    using StaleMax =
        mma_sync::StaleMaxSoftmax<Elem, kTilesM, kTilesS, kTilesO, CFG.rescale_threshold>;
    static constexpr bool kStaleMax = CFG.ping_pong && CFG.rescale_threshold > 0;
    using Softmax = typename Either<kStaleMax, StaleMax, Online>::Type;

    const int lane, warp;
    const unsigned q_smem;
    const LaneAddress<QTile> q_lane;
    const LaneAddress<typename Layouts::KTile> k_lane;
    const LaneAddress<typename Layouts::VTile> v_lane;

    typename Softmax::Scores s;
    typename Softmax::Probabilities p;
    typename Softmax::Outputs o;
    QStream q_registers;  // used when Q stays in registers
    Softmax softmax;
    ScoreMap<TRAITS> score_map;

    // ldmatrix lane roles, see ptx/ldmatrix.cuh and ptx/mma.cuh.  The two registers of a B
    // operand must be neighbours, so a fragment's four matrices are, in order,
    //   Q (A, 16 rows x 16 k):             (rows 0-7, 8-15) x (k 0-7), then x (k 8-15)
    //   K (B, 16 keys x 16 k):             (keys 0-7) x (k 0-7, 8-15), then (keys 8-15)
    //   V (B transposed, 16 keys x 16 columns): (keys 0-7, 8-15) x (columns 0-7), then 8-15
    __device__ __forceinline__ WarpTile(float softmax_scale, unsigned q_smem, unsigned k_smem,
                                        unsigned v_smem)
        : lane(threadIdx.x % 32),
          // Broadcast, so that the compiler knows it to be the same in all lanes.
          warp(__shfl_sync(0xffffffffu, threadIdx.x / 32, 0)),
          q_smem(q_smem),
          q_lane(q_smem, warp * kRowsPerWarp + lane % 16, lane / 16),
          k_lane(k_smem, lane / 16 * 8 + lane % 8, lane / 8 % 2),
          v_lane(v_smem, lane % 16, lane / 16),
          softmax(softmax_scale) {
        clear_output();
    }

    __device__ __forceinline__ auto q_loader() const {
        return [this](unsigned (&fragment)[4], int t, int m) {
            ptx::ldmatrix_x4(fragment, q_lane.at(t, 16 * m));
        };
    }

    // Q is in shared memory and is to stay in registers.
    __device__ __forceinline__ void load_q_registers() {
#pragma unroll
        for (int t = 0; t < kStepsQK; ++t) q_registers.prepare(t, q_loader());
    }

    // P = softmax of S, of all k-tiles or, with interleaved_softmax, of the first alone: the
    // others follow in StagedProducts.
    __device__ __forceinline__ void exponentiate() {
#pragma unroll
        for (int t = 0; t < (CFG.interleaved_softmax ? 1 : kStepsPV); ++t) {
            softmax.exponentiate(s, p, t);
        }
    }

    // Scores of the block that starts at `first_key` which must not count become -inf.
    __device__ __forceinline__ void mask(const ForwardParams& params,
                                         const Sequence<TRAITS.packed>& sequence, int first_query,
                                         int first_key) {
        mma_sync::mask_scores<TRAITS.causal, TRAITS.window>(
            s, first_query + warp * kRowsPerWarp, first_key, sequence.keys(params),
            sequence.diagonal(params), sequence.first_diagonal(params), lane);
    }

    // Products of the block that starts at `first_key` to scores.
    __device__ __forceinline__ void change_scores(const ForwardParams& params,
                                                  const Sequence<TRAITS.packed>& sequence,
                                                  int first_query, int first_key, bool masked) {
        if constexpr (TRAITS.changes_scores()) {
            if (masks_before_change<TRAITS>() && masked) {
                mask(params, sequence, first_query, first_key);
            }
            const int row = first_query + warp * kRowsPerWarp + lane / 4;
            const int column = first_key + 2 * (lane % 4);
#pragma unroll
            for (int m = 0; m < kTilesM; ++m) {
                score_map.change(s[m], row + 16 * m, column, sequence.alibi_diagonal(params),
                                 params);
            }
        }
    }

    // P = softmax of the block's scores.  `needs_max`: with its maxima; otherwise false comes back,
    // and P is not to be used, if the running maximum turned out to be too low.
    __device__ __forceinline__ bool stale_max_softmax(bool needs_max) {
        if (needs_max) softmax.refresh_max(s, o);
        softmax.begin_block();
        exponentiate();
        if (!needs_max && softmax.overflowed()) return false;
        softmax.accept();
        return true;
    }

    // As it was before the first block.
    __device__ __forceinline__ void restart() {
        softmax.restart();
        clear_output();
    }

    __device__ __forceinline__ void clear_scores() {
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
            for (int n = 0; n < kTilesS; ++n) {
#pragma unroll
                for (int i = 0; i < 4; ++i) s[m][n][i] = 0.f;
            }
        }
    }

    // Fragment m of k-tile t of Q: from `stream`, unless all of them stay in registers.
    template <typename Stream>
    __device__ __forceinline__ const unsigned (&q_fragment(const Stream& stream, int t, int m)
                                                   const)[4] {
        if constexpr (kQStaysInRegisters) {
            return q_registers.fragment(t, m);
        } else {
            return stream.fragment(t, m);
        }
    }

  private:
    __device__ __forceinline__ void clear_output() {
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
            for (int n = 0; n < kTilesO; ++n) {
#pragma unroll
                for (int i = 0; i < 4; ++i) o[m][n][i] = 0.f;
            }
        }
    }
};

}  // namespace fa_tune::sm80
