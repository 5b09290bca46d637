// The two products of a block when all of its fragments are staged k-tile by k-tile.
//
//               k-tiles t of d_head                        k-tiles t of keys
//               0    1    2                                0    1    2
//     rows    | Q  | Q  | Q  | ...  S += Q(t) K(t)^T     | P  | P  | P  | ...  O += P(t) V(t)
//
//     fragment of K    16 keys x 16 columns of d_head: of two 8-column tiles of S, a pair
//     fragment of V    16 keys x 16 columns of d_v: of two 8-column tiles of O, a pair
//
// How many k-tiles of an operand are in registers at a time is a knob of each, see
// mma_sync/fragment_stream.cuh.
#pragma once

#include "mma_sync/fragment_stream.cuh"
#include "ptx/ldmatrix.cuh"
#include "sm80/fwd/config.cuh"

namespace fa_tune::sm80 {

template <FlashForwardKernelConfig CFG, typename Tile>
struct StagedProducts {
    using Elem = typename Tile::Elem;
    static constexpr int kTilesM = Tile::kTilesM;
    static constexpr int kTilesS = Tile::kTilesS;
    static constexpr int kTilesO = Tile::kTilesO;
    static constexpr int kStepsQK = Tile::kStepsQK;
    static constexpr int kStepsPV = Tile::kStepsPV;
    static constexpr bool kBuffer = CFG.mma_double_buffer_loads;
    using KStream =
        mma_sync::FragmentStream<kStepsQK, CFG.K_mma_load_K_tiles, kTilesS / 2, kBuffer>;
    using VStream =
        mma_sync::FragmentStream<kStepsPV, CFG.V_mma_load_K_tiles, kTilesO / 2, kBuffer>;

    // S = Q K^T of the block `k_offset` bytes into the ring of K blocks.
    __device__ __forceinline__ static void multiply_qk(Tile& tile, unsigned k_offset) {
        const auto k_block = tile.k_lane.moved(k_offset);
        tile.clear_scores();
        typename Tile::QStream q_stream;
        KStream k_stream;
#pragma unroll
        for (int t = 0; t < kStepsQK; ++t) {
            if constexpr (!Tile::kQStaysInRegisters) q_stream.prepare(t, tile.q_loader());
            k_stream.prepare(t, [&](unsigned (&fragment)[4], int step, int pair) {
                ptx::ldmatrix_x4(fragment, k_block.at(step, 16 * pair));
            });
#pragma unroll
            for (int pair = 0; pair < kTilesS / 2; ++pair) {
                const unsigned (&k)[4] = k_stream.fragment(t, pair);
#pragma unroll
                for (int m = 0; m < kTilesM; ++m) {
                    const unsigned (&q)[4] = tile.q_fragment(q_stream, t, m);
                    Elem::mma(tile.s[m][2 * pair], q, k[0], k[1]);
                    Elem::mma(tile.s[m][2 * pair + 1], q, k[2], k[3]);
                }
            }
        }
    }

    // O += P V of the block `v_offset` bytes into the ring of V blocks.
    __device__ __forceinline__ static void multiply_pv(Tile& tile, unsigned v_offset) {
        VStream v_stream;
        constexpr int kPairs = kTilesO / 2;
        constexpr int kSoftmaxTiles = 2 * kTilesM;  // 16 x 8 tiles of S in one k-tile
#pragma unroll
        for (int t = 0; t < kStepsPV; ++t) {
            const auto v_block = tile.v_lane.moved(v_offset);
            v_stream.prepare(t, [&](unsigned (&fragment)[4], int step, int pair) {
                ptx::ldmatrix_x4_trans(fragment, v_block.at(pair, 16 * step));
            });
#pragma unroll
            for (int pair = 0; pair < kPairs; ++pair) {
                const unsigned (&v)[4] = v_stream.fragment(t, pair);
#pragma unroll
                for (int m = 0; m < kTilesM; ++m) {
                    Elem::mma(tile.o[m][2 * pair], tile.p[m][t], v[0], v[1]);
                    Elem::mma(tile.o[m][2 * pair + 1], tile.p[m][t], v[2], v[3]);
                }
                // The next k-tile's exponentials, spread between this one's products.
                if constexpr (CFG.interleaved_softmax) {
                    if (t + 1 < kStepsPV) {
#pragma unroll
                        for (int x = pair * kSoftmaxTiles / kPairs;
                             x < (pair + 1) * kSoftmaxTiles / kPairs; ++x) {
                            tile.softmax.exponentiate_tile(tile.s, tile.p, x / 2,
                                                           2 * (t + 1) + x % 2);
                        }
                    }
                }
            }
        }
    }
};

}  // namespace fa_tune::sm80
