// The two products of a turn (ping_pong_mainloop.cuh), with fragments loaded some steps ahead.
//
//     before the turn   | first fragments of V |
//     turn              | O += P V, more of V | first of K and Q | S = Q K^T, more of K and Q |
//
// Fragments of V and K come one by one, as pairs of 8-column tiles (staged_products.cuh), k-tile
// after k-tile: fragment x is pair x % kPairs of k-tile x / kPairs.  In which order they are
// loaded and multiplied is in product_order.cuh.
#pragma once

#include "compiler.cuh"
#include "mma_sync/rolling_stream.cuh"
#include "mma_sync/run_stream.cuh"
#include "ptx/ldmatrix.cuh"
#include "sm80/fwd/product_order.cuh"

namespace fa_tune::sm80 {

template <FlashForwardKernelConfig CFG, WorkloadTraits TRAITS, typename Tile>
struct TurnProducts {
    using Elem = typename Tile::Elem;
    static constexpr int kTilesM = Tile::kTilesM;
    static constexpr int kStepsQK = Tile::kStepsQK;
    static constexpr int kStepsPV = Tile::kStepsPV;
    static constexpr int kPairsS = Tile::kTilesS / 2;
    static constexpr int kPairsO = Tile::kTilesO / 2;
    static constexpr int kRunLength = turn_order_of<CFG, TRAITS>().run_length;
    static constexpr bool kTurning = turn_order_of<CFG, TRAITS>().turning;
    static constexpr int kWantedQStep = turn_order_of<CFG, TRAITS>().q_step;

    // A run stays within a k-tile: beyond it the A operand is another.
    __device__ static constexpr int run_length(int pairs) {
        return pairs % 4 == 0 ? kRunLength : pairs % 3 == 0 ? 3 : 2 - pairs % 2;
    }
    using VRuns = mma_sync::RunStream<kStepsPV * kPairsO, run_length(kPairsO), kTilesM,
                                      turn_order_of<CFG, TRAITS>().v_lead, kTurning>;
    using KRuns = mma_sync::RunStream<kStepsQK * kPairsS, run_length(kPairsS), kTilesM,
                                      turn_order_of<CFG, TRAITS>().k_lead, kTurning>;
    // The step of a k-tile before which Q's fragments of the next one are loaded.
    static constexpr int kQStep = kWantedQStep < kPairsS * kTilesM ? kWantedQStep : 0;

    // All of P is there when this is: the assembler would move its exponentials and roundings
    // behind the barrier of the turn, into the products.  Stores that never happen, since sums
    // are not negative, but for which it needs all of them.
    __device__ __forceinline__ static void pin_softmax(const Tile& tile) {
        float sum = 0.f;
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) {
            sum += tile.softmax.block_sum[m][0] + tile.softmax.block_sum[m][1];
        }
        constexpr int kFragments = kTilesM * kStepsPV;
        auto fragment = [&](int i) -> const unsigned (&)[4] {
            const int x = min(i, kFragments - 1);
            return tile.p[x / kStepsPV][x % kStepsPV];
        };
#pragma unroll
        for (int i = 0; i < kFragments; i += 4) {
            force_before_here(sum, fragment(i), fragment(i + 1), fragment(i + 2), fragment(i + 3),
                              tile.q_smem);
        }
    }

    // Before the turn: the first fragments of the V block `v_offset` bytes into its ring.
    __device__ __forceinline__ static void start_pv(const Tile& tile, VRuns& v_stream,
                                                    unsigned v_offset) {
        v_stream.start(v_loader(tile, v_offset));
    }

    // O += P V of the same block.
    __device__ __forceinline__ static void multiply_pv(Tile& tile, VRuns& v_stream,
                                                       unsigned v_offset) {
#pragma unroll
        for (int step = 0; step < VRuns::kSteps; ++step) {
            v_stream.advance(step, v_loader(tile, v_offset));
            const int m = VRuns::run(step), x = VRuns::fragment_of(step);
            const int t = x / kPairsO, pair = x % kPairsO;
            const unsigned (&v)[4] = v_stream.at(step);
            Elem::mma(tile.o[m][2 * pair], tile.p[m][t], v[0], v[1]);
            Elem::mma(tile.o[m][2 * pair + 1], tile.p[m][t], v[2], v[3]);
        }
    }

    // S = Q K^T of the block `k_offset` bytes into the ring of K blocks.
    __device__ __forceinline__ static void multiply_qk(Tile& tile, unsigned k_offset) {
        const auto k_block = tile.k_lane.moved(k_offset);
        auto k_loader = [&](unsigned (&fragment)[4], int x) {
            ptx::ldmatrix_x4(fragment, k_block.at(x / kPairsS, 16 * (x % kPairsS)));
        };
        tile.clear_scores();
        mma_sync::RollingStream<1, kTilesM> q_stream;
        KRuns k_stream;
        if constexpr (!Tile::kQStaysInRegisters) q_stream.start(tile.q_loader());
        k_stream.start(k_loader);
#pragma unroll
        for (int step = 0; step < KRuns::kSteps; ++step) {
            const int m = KRuns::run(step), x = KRuns::fragment_of(step);
            const int t = x / kPairsS, pair = x % kPairsS;
            if (!Tile::kQStaysInRegisters && step % (kPairsS * kTilesM) == kQStep &&
                t + 1 < kStepsQK) {
                q_stream.fetch(t + 1, tile.q_loader());
            }
            k_stream.advance(step, k_loader);
            const unsigned (&k)[4] = k_stream.at(step);
            const unsigned (&q)[4] = tile.q_fragment(q_stream, t, m);
            Elem::mma(tile.s[m][2 * pair], q, k[0], k[1]);
            Elem::mma(tile.s[m][2 * pair + 1], q, k[2], k[3]);
        }
    }

  private:
    __device__ __forceinline__ static auto v_loader(const Tile& tile, unsigned v_offset) {
        return [v_block = tile.v_lane.moved(v_offset)](unsigned (&fragment)[4], int x) {
            ptx::ldmatrix_x4_trans(fragment, v_block.at(x % kPairsO, 16 * (x / kPairsO)));
        };
    }
};

}  // namespace fa_tune::sm80
