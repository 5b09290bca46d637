// The way out for O and the log-sum-exp of a warp's rows.
//
//     write   registers -- O / l, rounded --> the warp's own rows of Q -- 16-byte chunks --> global
//     stage   registers -- O / l, rounded, stmatrix --> the warp's own rows of a tile in shared
//             memory, from where a bulk copy takes them
//
// A lane l holds of the 16x8 tile o[m][n]
//
//                        columns 8 n + 2 (l % 4) and + 1
//     row 16 m + l / 4            o[m][n][0], [1]
//     row 16 m + l / 4 + 8        o[m][n][2], [3]
//
// and the log-sum-exp of these two rows, of which the first lane of each quad writes it.
#pragma once

#include "common/problem.cuh"
#include "common/scores.cuh"
#include "common/sequence.cuh"
#include "mma_sync/copy.cuh"
#include "ptx/stmatrix.cuh"
#include "sm80/fwd/params.cuh"

namespace fa_tune::sm80 {

template <WorkloadTraits TRAITS, typename Tile>
struct Epilogue {
    using Elem = typename Tile::Elem;
    using OTile = typename Tile::OTile;
    static constexpr int kTilesM = Tile::kTilesM;
    static constexpr int kTilesO = Tile::kTilesO;

    // O / l to global memory, so that global stores are whole chunks.  Nothing may still be on its
    // way to the warp's rows of Q.
    __device__ __forceinline__ static void write(Tile& tile, const ForwardParams& params,
                                                 const Sequence<TRAITS.packed>& sequence, int batch,
                                                 int head, int first_query) {
        float log_sum_exp[kTilesM][2];
        finish(tile, params, head, log_sum_exp);
        const int warp_row = tile.warp * Tile::kRowsPerWarp;
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row = warp_row + 16 * m + 8 * half + tile.lane / 4;
#pragma unroll
                for (int n = 0; n < kTilesO; ++n) {
                    const unsigned target = tile.q_smem + OTile::offset(row, n) + tile.lane % 4 * 4;
                    *reinterpret_cast<unsigned*>(__cvta_shared_to_generic(target)) =
                        Elem::pack(tile.o[m][n][2 * half], tile.o[m][n][2 * half + 1]);
                }
                if constexpr (TRAITS.lse) {
                    write_lse(tile, params, sequence, batch, head, first_query, row,
                              log_sum_exp[m][half]);
                }
            }
        }
        __syncwarp();
        unsigned short* out = params.o + batch * params.o_strides.batch +
                              head * params.o_strides.head + first_query * params.o_strides.seq;
        if constexpr (TRAITS.packed) out += sequence.first_query * params.o_strides.seq;
        mma_sync::store_warp_rows<OTile, Tile::kRowsPerWarp, TRAITS.ragged>(
            out, params.o_strides.seq, tile.q_smem, warp_row,
            sequence.queries(params) - first_query, tile.lane);
    }

    // O / l, as bulk copies want it, to this warp's own rows of the tile at `o_smem`; the
    // log-sum-exp to global memory.
    __device__ __forceinline__ static void stage(Tile& tile, const ForwardParams& params,
                                                 const Sequence<TRAITS.packed>& sequence,
                                                 unsigned o_smem, int batch, int head,
                                                 int first_query) {
        float log_sum_exp[kTilesM][2];
        finish(tile, params, head, log_sum_exp);
        const auto o_lane = tile.q_lane.moved(o_smem - tile.q_smem);
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
            for (int n = 0; n < kTilesO; n += 2) {
                const auto& left = tile.o[m][n];
                const auto& right = tile.o[m][n + 1];
                const unsigned chunks[4] = {
                    Elem::pack(left[0], left[1]), Elem::pack(left[2], left[3]),
                    Elem::pack(right[0], right[1]), Elem::pack(right[2], right[3])};
                ptx::stmatrix_x4(o_lane.at(n / 2, 16 * m), chunks);
            }
            if constexpr (TRAITS.lse) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int row =
                        tile.warp * Tile::kRowsPerWarp + 16 * m + 8 * half + tile.lane / 4;
                    write_lse(tile, params, sequence, batch, head, first_query, row,
                              log_sum_exp[m][half]);
                }
            }
        }
    }

  private:
    __device__ __forceinline__ static void finish(Tile& tile, const ForwardParams& params, int head,
                                                  float (&log_sum_exp)[kTilesM][2]) {
        const float sink = sink_exponent<TRAITS>(params, head);
        tile.softmax.template finish<TRAITS.sink>(tile.o, log_sum_exp, sink);
        if constexpr (has_score_shift<TRAITS>()) {
#pragma unroll
            for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    log_sum_exp[m][half] -= score_shift<TRAITS>(params);
                }
            }
        }
    }

    __device__ __forceinline__ static void write_lse(const Tile& tile, const ForwardParams& params,
                                                     const Sequence<TRAITS.packed>& sequence,
                                                     int batch, int head, int first_query, int row,
                                                     float value) {
        const long long of_batch = TRAITS.packed ? 0 : static_cast<long long>(batch);
        long long index = (of_batch * params.heads + head) * params.seq_len_q + first_query + row;
        if constexpr (TRAITS.packed) index += sequence.first_query;
        if (tile.lane % 4 == 0 && first_query + row < sequence.queries(params)) {
            params.lse[index] = value;
        }
    }
};

}  // namespace fa_tune::sm80
