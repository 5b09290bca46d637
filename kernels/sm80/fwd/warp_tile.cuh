// One warp's share of a CTA's work: its rows of S, P and O, all in registers, and what it does
// with the blocks of K and V in shared memory.
//
//              keys n                          d_head
//            +---------+                     +---------+
//     rows   | S, P    |  = Q K^T     rows   | O       |  += P V
//            +---------+                     +---------+
//
// The loops that bring the blocks are in cp_async_mainloop.cuh and ping_pong_mainloop.cuh.
#pragma once

#include "common/problem.cuh"
#include "common/swizzle.cuh"
#include "compiler.cuh"
#include "mma_sync/copy.cuh"
#include "mma_sync/element.cuh"
#include "mma_sync/fragment_stream.cuh"
#include "mma_sync/mask.cuh"
#include "mma_sync/online_softmax.cuh"
#include "mma_sync/rolling_stream.cuh"
#include "mma_sync/run_stream.cuh"
#include "mma_sync/stale_max_softmax.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/stmatrix.cuh"
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

// QTile, KVTile: how Q's rows and a block of keys or values lie in shared memory.
template <FlashForwardKernelConfig CFG, WorkloadTraits TRAITS, typename QTile, typename KVTile>
struct WarpTile : Constraints<CFG> {
    static constexpr int kRowsPerWarp = CFG.B_r / CFG.n_warps;
    static constexpr int kTilesM = kRowsPerWarp / 16;  // 16-row tiles of S, P and O
    static constexpr int kTilesS = CFG.B_c / 8;        // 8-column tiles of S
    static constexpr int kTilesO = CFG.d_head / 8;     // 8-column tiles of O
    static constexpr int kStepsQK = CFG.d_head / 16;   // k-tiles of S = Q K^T
    static constexpr int kStepsPV = CFG.B_c / 16;      // k-tiles of O += P V
    static constexpr bool kQStaysInRegisters = CFG.Q_mma_load_K_tiles == 0;
    static constexpr bool kMasked = TRAITS.causal || TRAITS.ragged;
    static constexpr bool kBuffer = CFG.mma_double_buffer_loads;

    using Elem = mma_sync::Element<CFG.dtype>;
    using QStream = mma_sync::FragmentStream<kStepsQK, CFG.Q_mma_load_K_tiles, kTilesM, kBuffer>;
    using KStream =
        mma_sync::FragmentStream<kStepsQK, CFG.K_mma_load_K_tiles, kTilesS / 2, kBuffer>;
    using VStream =
        mma_sync::FragmentStream<kStepsPV, CFG.V_mma_load_K_tiles, kTilesO / 2, kBuffer>;
    using Online = mma_sync::OnlineSoftmax<Elem, kTilesM, kTilesS, kTilesO, CFG.optimized_softmax,
                                           CFG.rescale_threshold>;
    using StaleMax =
        mma_sync::StaleMaxSoftmax<Elem, kTilesM, kTilesS, kTilesO, CFG.rescale_threshold>;
    static constexpr bool kStaleMax = CFG.ping_pong && CFG.rescale_threshold > 0;
    using Softmax = typename Either<kStaleMax, StaleMax, Online>::Type;

    const int lane, warp;
    const unsigned q_smem;
    const LaneAddress<QTile> q_lane;
    const LaneAddress<KVTile> k_lane, v_lane;

    typename Softmax::Scores s;
    typename Softmax::Probabilities p;
    typename Softmax::Outputs o;
    QStream q_registers;  // used when Q stays in registers
    Softmax softmax;

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

    // S = Q K^T of the block `k_offset` bytes into the ring of K blocks.
    __device__ __forceinline__ void multiply_qk(unsigned k_offset) {
        const LaneAddress<KVTile> k_block = k_lane.moved(k_offset);
        clear_scores();
        QStream q_stream;
        KStream k_stream;
#pragma unroll
        for (int t = 0; t < kStepsQK; ++t) {
            if constexpr (!kQStaysInRegisters) q_stream.prepare(t, q_loader());
            k_stream.prepare(t, [&](unsigned (&fragment)[4], int step, int pair) {
                ptx::ldmatrix_x4(fragment, k_block.at(step, 16 * pair));
            });
#pragma unroll
            for (int pair = 0; pair < kTilesS / 2; ++pair) {
                const unsigned (&k)[4] = k_stream.fragment(t, pair);
#pragma unroll
                for (int m = 0; m < kTilesM; ++m) {
                    const unsigned (&q)[4] = q_fragment(q_stream, t, m);
                    Elem::mma(s[m][2 * pair], q, k[0], k[1]);
                    Elem::mma(s[m][2 * pair + 1], q, k[2], k[3]);
                }
            }
        }
    }

    // P = softmax of S, of all k-tiles or, with interleaved_softmax, of the first alone: the
    // others follow in multiply_pv.
    __device__ __forceinline__ void exponentiate() {
#pragma unroll
        for (int t = 0; t < (CFG.interleaved_softmax ? 1 : kStepsPV); ++t) {
            softmax.exponentiate(s, p, t);
        }
    }

    // O += P V of the block `v_offset` bytes into the ring of V blocks.
    __device__ __forceinline__ void multiply_pv(unsigned v_offset) {
        VStream v_stream;
        constexpr int kPairs = kTilesO / 2;
        constexpr int kSoftmaxTiles = 2 * kTilesM;  // 16 x 8 tiles of S in one k-tile
#pragma unroll
        for (int t = 0; t < kStepsPV; ++t) {
            v_stream.prepare(t, v_loader(v_offset));
#pragma unroll
            for (int pair = 0; pair < kPairs; ++pair) {
                const unsigned (&v)[4] = v_stream.fragment(t, pair);
#pragma unroll
                for (int m = 0; m < kTilesM; ++m) {
                    Elem::mma(o[m][2 * pair], p[m][t], v[0], v[1]);
                    Elem::mma(o[m][2 * pair + 1], p[m][t], v[2], v[3]);
                }
                // The next k-tile's exponentials, spread between this one's products.
                if constexpr (CFG.interleaved_softmax) {
                    if (t + 1 < kStepsPV) {
#pragma unroll
                        for (int x = pair * kSoftmaxTiles / kPairs;
                             x < (pair + 1) * kSoftmaxTiles / kPairs; ++x) {
                            softmax.exponentiate_tile(s, p, x / 2, 2 * (t + 1) + x % 2);
                        }
                    }
                }
            }
        }
    }

    // All of P is there when this is: the assembler would move its exponentials and roundings
    // behind the barrier of the turn, into the products.  Stores that never happen, since sums
    // are not negative, but for which it needs all of them.
    __device__ __forceinline__ void pin_softmax() const {
        float sum = 0.f;
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) sum += softmax.row_sum[m][0] + softmax.row_sum[m][1];
        constexpr int kFragments = kTilesM * kStepsPV;
        auto fragment = [&](int i) -> const unsigned (&)[4] {
            const int x = min(i, kFragments - 1);
            return p[x / kStepsPV][x % kStepsPV];
        };
#pragma unroll
        for (int i = 0; i < kFragments; i += 4) {
            force_before_here(sum, fragment(i), fragment(i + 1), fragment(i + 2), fragment(i + 3),
                              q_smem);
        }
    }

    // The two products of a turn, see ping_pong_mainloop.cuh.
    // In which order products and loads stand is worth a few percent, and what is best depends on
    // the kernel (H200, benchmarks/sm80_experiments_h200.txt).  Products come in runs of up to
    // eight with the same A operand, or of four where S takes more registers than O; V's fragments
    // may take the place of S, which is gone, where P leaves room.
    static constexpr bool kMoreScores = kTilesS >= kTilesO;
    static constexpr bool kShortRuns = kMoreScores && !TRAITS.causal;
    static constexpr int kVLead = TRAITS.causal ? (kMoreScores ? 4 : 12) : (kMoreScores ? 8 : 6);
    static constexpr int kKLead = TRAITS.causal ? (kMoreScores ? 4 : 8) : (kMoreScores ? 6 : 4);
    template <int kPairs>
    static constexpr int kRunLength = kPairs % 4 == 0   ? (kShortRuns ? 2 : 4)
                                      : kPairs % 3 == 0 ? 3
                                                        : 2 - kPairs % 2;
    using VRuns = mma_sync::RunStream<kStepsPV * kTilesO / 2, kRunLength<kTilesO / 2>, kTilesM,
                                      kVLead, kShortRuns>;
    using KRuns = mma_sync::RunStream<kStepsQK * kTilesS / 2, kRunLength<kTilesS / 2>, kTilesM,
                                      kKLead, kShortRuns>;
    // The product of a k-tile before which Q's fragments of the next one are loaded.
    static constexpr int kQStep = kShortRuns && kTilesS * kTilesM > 8 ? 4 : 0;

    // Before the turn: the first fragments of V.
    __device__ __forceinline__ void start_pv(VRuns& v_stream, unsigned v_offset) const {
        v_stream.start(v_item_loader(v_offset));
    }

    __device__ __forceinline__ void multiply_pv(VRuns& v_stream, unsigned v_offset) {
        constexpr int kPairs = kTilesO / 2;
#pragma unroll
        for (int step = 0; step < VRuns::kSteps; ++step) {
            v_stream.advance(step, v_item_loader(v_offset));
            const int m = VRuns::run(step), x = VRuns::fragment_of(step);
            const int t = x / kPairs, pair = x % kPairs;
            const unsigned (&v)[4] = v_stream.at(step);
            Elem::mma(o[m][2 * pair], p[m][t], v[0], v[1]);
            Elem::mma(o[m][2 * pair + 1], p[m][t], v[2], v[3]);
        }
    }

    __device__ __forceinline__ void multiply_qk_in_turn(unsigned k_offset) {
        constexpr int kPairs = kTilesS / 2;
        const LaneAddress<KVTile> k_block = k_lane.moved(k_offset);
        auto k_loader = [&](unsigned (&fragment)[4], int x) {
            ptx::ldmatrix_x4(fragment, k_block.at(x / kPairs, 16 * (x % kPairs)));
        };
        clear_scores();
        mma_sync::RollingStream<1, kTilesM> q_stream;
        KRuns k_stream;
        if constexpr (!kQStaysInRegisters) q_stream.start(q_loader());
        k_stream.start(k_loader);
#pragma unroll
        for (int step = 0; step < KRuns::kSteps; ++step) {
            const int m = KRuns::run(step), x = KRuns::fragment_of(step);
            const int t = x / kPairs, pair = x % kPairs;
            if (!kQStaysInRegisters && step % (kPairs * kTilesM) == kQStep && t + 1 < kStepsQK) {
                q_stream.fetch(t + 1, q_loader());
            }
            k_stream.advance(step, k_loader);
            const unsigned (&k)[4] = k_stream.at(step);
            const unsigned (&q)[4] = q_fragment(q_stream, t, m);
            Elem::mma(s[m][2 * pair], q, k[0], k[1]);
            Elem::mma(s[m][2 * pair + 1], q, k[2], k[3]);
        }
    }

    // Scores of the block that starts at `first_key` which must not count become -inf.
    __device__ __forceinline__ void mask(const ForwardParams& params, int first_query,
                                         int first_key) {
        mma_sync::mask_scores<TRAITS.causal>(s, first_query + warp * kRowsPerWarp, first_key,
                                             params.seq_len_kv, params.diagonal, lane);
    }

    // O / l to global memory, through this warp's own rows of the Q tile, so that global stores
    // are whole chunks.  Nothing may still be on its way to those rows.
    __device__ __forceinline__ void write_output(const ForwardParams& params, int batch, int head,
                                                 int first_query) {
        float log_sum_exp[kTilesM][2];
        softmax.finish(o, log_sum_exp);
        const int warp_row = warp * kRowsPerWarp;
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row = warp_row + 16 * m + 8 * half + lane / 4;
#pragma unroll
                for (int n = 0; n < kTilesO; ++n) {
                    const unsigned target = q_smem + QTile::offset(row, n) + lane % 4 * 4;
                    *reinterpret_cast<unsigned*>(__cvta_shared_to_generic(target)) =
                        Elem::pack(o[m][n][2 * half], o[m][n][2 * half + 1]);
                }
                if constexpr (TRAITS.lse) {
                    const long long index =
                        (static_cast<long long>(batch) * params.heads + head) * params.seq_len_q +
                        first_query + row;
                    if (lane % 4 == 0 && first_query + row < params.seq_len_q) {
                        params.lse[index] = log_sum_exp[m][half];
                    }
                }
            }
        }
        __syncwarp();
        unsigned short* out = params.o + batch * params.o_strides.batch +
                              head * params.o_strides.head + first_query * params.o_strides.seq;
        mma_sync::store_warp_rows<QTile, kRowsPerWarp, TRAITS.ragged>(
            out, params.o_strides.seq, q_smem, warp_row, params.seq_len_q - first_query, lane);
    }

    // O / l, as bulk copies want it, to this warp's own rows of a tile in shared memory.
    __device__ __forceinline__ void stage_output(const ForwardParams& params, unsigned o_smem,
                                                 int batch, int head, int first_query) {
        float log_sum_exp[kTilesM][2];
        softmax.finish(o, log_sum_exp);
        const LaneAddress<QTile> o_lane = q_lane.moved(o_smem - q_smem);
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
            for (int n = 0; n < kTilesO; n += 2) {
                const unsigned chunks[4] = {Elem::pack(o[m][n][0], o[m][n][1]),
                                            Elem::pack(o[m][n][2], o[m][n][3]),
                                            Elem::pack(o[m][n + 1][0], o[m][n + 1][1]),
                                            Elem::pack(o[m][n + 1][2], o[m][n + 1][3])};
                ptx::stmatrix_x4(o_lane.at(n / 2, 16 * m), chunks);
            }
            if constexpr (TRAITS.lse) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int row = warp * kRowsPerWarp + 16 * m + 8 * half + lane / 4;
                    const long long index =
                        (static_cast<long long>(batch) * params.heads + head) * params.seq_len_q +
                        first_query + row;
                    if (lane % 4 == 0 && first_query + row < params.seq_len_q) {
                        params.lse[index] = log_sum_exp[m][half];
                    }
                }
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

    template <typename Stream>
    __device__ __forceinline__ const unsigned (&q_fragment(const Stream& stream, int t, int m)
                                                   const)[4] {
        if constexpr (kQStaysInRegisters) {
            return q_registers.fragment(t, m);
        } else {
            return stream.fragment(t, m);
        }
    }

    // V's fragments one by one, in the order of multiply_pv.
    __device__ __forceinline__ auto v_item_loader(unsigned v_offset) const {
        return [this, v_block = v_lane.moved(v_offset)](unsigned (&fragment)[4], int x) {
            constexpr int kPairs = kTilesO / 2;
            ptx::ldmatrix_x4_trans(fragment, v_block.at(x % kPairs, 16 * (x / kPairs)));
        };
    }

    __device__ __forceinline__ auto v_loader(unsigned v_offset) const {
        return
            [this, v_block = v_lane.moved(v_offset)](unsigned (&fragment)[4], int step, int pair) {
                ptx::ldmatrix_x4_trans(fragment, v_block.at(pair, 16 * step));
            };
    }
};

}  // namespace fa_tune::sm80
