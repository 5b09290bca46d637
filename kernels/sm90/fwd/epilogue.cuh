// The way out for O and the log-sum-exp of a warpgroup's 64 rows.
//
//     registers  -- divide by l, round, stmatrix -->  the warpgroup's own rows of Q
//                -- bulk copy -->  global memory
//
// The buffer of Q belongs to the producer again when the copy has read it: release_q.  With o_apart
// it does earlier, when the tile's last scores are there: give_q_back.  O then leaves panel by
// panel from a place of its own.
#pragma once

#include "common/constants.cuh"
#include "common/problem.cuh"
#include "common/scores.cuh"
#include "ptx/bar.cuh"
#include "ptx/cp_async_bulk.cuh"
#include "ptx/elect.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/shared_words.cuh"
#include "ptx/stmatrix.cuh"
#include "sm90/fwd/cluster_output.cuh"
#include "sm90/fwd/named_barriers.cuh"
#include "sm90/fwd/params.cuh"
#include "sm90/fwd/scheduler.cuh"
#include "sm90/fwd/shared_memory.cuh"

namespace fa_tune::sm90 {

template <Sm90Config CFG, WorkloadTraits TRAITS>
struct Epilogue {
    using OTile = typename SharedMemory<CFG>::OTile;
    static constexpr int kOutputs = CFG.padded_d_v() / 2;

    const ForwardParams& p;
    const ptx::TensorMap& o_map;
    const SharedAddress<CFG> smem;
    const int warpgroup, warp, lane;

    // Of a tile whose Q is in `slot`.
    template <class Softmax>
    __device__ __forceinline__ void run(const WorkTile& tile,
                                        const Sequence<TRAITS.packed>& sequence, int slot,
                                        Softmax& softmax, float (&o)[kOutputs],
                                        const typename Softmax::TileFacts& facts) const {
        if constexpr (CFG.splits > 1) return run_of_cluster(tile, sequence, softmax, o, facts);
        const int query = first_row<CFG>(tile, warpgroup) + 16 * warp + lane / 4;
        float inverse[2], log_sum_exp[2];
        bool empty[2];
        const float sink = sink_exponent<TRAITS>(p, tile.head);
        softmax.template finish<TRAITS.sink>(o, inverse, log_sum_exp, empty, sink, facts);
        if constexpr (has_score_shift<TRAITS>()) {
#pragma unroll
            for (int i = 0; i < 2; ++i) log_sum_exp[i] -= score_shift<TRAITS>(p);
        }
        if constexpr (TRAITS.diagonal()) {
            // Their P is 0, but 0 times an infinite V is not.
            if (__any_sync(kAllLanes, empty[0] || empty[1])) {
#pragma unroll
                for (int j = 0; j < kOutputs; ++j) o[j] = empty[j / 2 % 2] ? 0.f : o[j];
            }
        }
        if constexpr (CFG.o_apart()) {
            const auto own_panel = [&] { return smem.o_panel(warpgroup); };
            if constexpr (TRAITS.lse) write_lse(tile, sequence, query, log_sum_exp);
#pragma unroll
            for (int panel = 0; panel < OTile::kPanels; ++panel) {
                wait();
                if (panel == 0) tell_corrections(softmax);
                sync_warpgroup();  // the panel before this one has been read
                if (panel == 0) hear_corrections(softmax);
                stage(own_panel, softmax, o, inverse, panel, panel + 1);
                send(tile, sequence, own_panel, panel, panel + 1);
            }
        } else {
            tell_corrections(softmax);
            sync_warpgroup();  // all four warps are past their reads of Q
            hear_corrections(softmax);
            // Read where they are used: hoisted, the machine code is not the one that was measured.
            const auto rows_of_q = [&] { return smem.q(slot); };
            stage(rows_of_q, softmax, o, inverse, 0, OTile::kPanels);
            if constexpr (TRAITS.lse) write_lse(tile, sequence, query, log_sum_exp);
            send(tile, sequence, rows_of_q, 0, OTile::kPanels);
        }
    }

    // Of a CTA of a cluster that has none of the tile's keys.
    template <class Softmax>
    __device__ __forceinline__ void run_without_keys(
        const WorkTile& tile, const Sequence<TRAITS.packed>& sequence) const {
        const ClusterOutput<CFG, TRAITS, Softmax> output{p, o_map, smem, warpgroup, warp, lane};
        output.hand_over_nothing();
        output.combine(tile, sequence);
        wait();
    }

    // With o_apart, by all lanes: the warp has read Q for the last time.
    __device__ __forceinline__ void give_q_back(int slot) const {
        if (lane == 0) ptx::mbarrier_arrive(smem.q_empty(slot));
    }

    // The producer may fill the buffer again: when O has been read from there.
    __device__ __forceinline__ void release_q(int slot) const {
        if (warp == 0 && ptx::elect_sync()) {
            ptx::cp_async_bulk_wait_group_read();
            ptx::mbarrier_arrive(smem.q_empty(slot));
        }
    }

    // Shared memory must outlast the copies that read it.
    __device__ __forceinline__ void wait() const {
        if (warp == 0 && ptx::elect_sync()) ptx::cp_async_bulk_wait_group_read();
    }

  private:
    template <class Softmax>
    __device__ __forceinline__ void run_of_cluster(const WorkTile& tile,
                                                   const Sequence<TRAITS.packed>& sequence,
                                                   Softmax& softmax, const float (&o)[kOutputs],
                                                   const typename Softmax::TileFacts& facts) const {
        const ClusterOutput<CFG, TRAITS, Softmax> output{p, o_map, smem, warpgroup, warp, lane};
        float inverse[2], log_sum_exp[2];
        bool empty[2];
        softmax.template finish<false>(o, inverse, log_sum_exp, empty, 0.f, facts);
        const float sums[2] = {quad_sum(softmax.row_sum[0]), quad_sum(softmax.row_sum[1])};
        output.hand_over(o, inverse, softmax.row_max, sums);
        output.combine(tile, sequence);
    }

    __device__ __forceinline__ void sync_warpgroup() const {
        ptx::bar_sync(static_cast<int>(NamedBarrier::EPILOGUE) + warpgroup, 128);
    }

    // With watched_max the warpgroup's corrections take the place of the warp's.  Read before all
    // four warps meet once more, they are the same for all.
    template <class Softmax>
    __device__ __forceinline__ void tell_corrections(const Softmax& softmax) const {
        if constexpr (Softmax::kWatches) {
            if (lane == 0)
                ptx::st_shared(smem.corrections(warpgroup) + 4 * warp, softmax.corrections);
        }
    }

    template <class Softmax>
    __device__ __forceinline__ void hear_corrections(Softmax& softmax) const {
        if constexpr (Softmax::kWatches) {
            int of_warp[4];
            ptx::ld_shared_v4(of_warp, smem.corrections(warpgroup));
            softmax.corrections = of_warp[0] + of_warp[1] + of_warp[2] + of_warp[3];
        }
    }

    // Panels from `first` to before `end`, to `place`.
    template <class Place, class Softmax>
    __device__ __forceinline__ void stage(const Place& place, const Softmax& softmax,
                                          const float (&o)[kOutputs], const float (&inverse)[2],
                                          int first, int end) const {
#pragma unroll
        for (int t = 4 * first; t < min(4 * end, CFG.padded_d_v() / 16); ++t) {
            // Fragment t, rounded: register i has columns 16 t + 2 (lane % 4) and + 1 of row i % 2,
            // 8 columns further on from i = 2.
            unsigned r[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int j = 8 * t + 2 * i;
                r[i] = softmax.round(o[j] * inverse[i % 2], o[j + 1] * inverse[i % 2]);
            }
            ptx::stmatrix_x4(chunk_address(place(), t - 4 * first), r);
        }
    }

    // Of the 16x16 fragment t in this warp's rows of a tile of O: lane l has the
    // address of row l % 16, columns 8 (l / 16) to + 7.
    __device__ __forceinline__ unsigned chunk_address(unsigned tile_smem, int t) const {
        const unsigned row = 16 * warp + lane % 16;
        const unsigned chunk = 2 * (t % 4) + lane / 16;
        return tile_smem + t / 4 * OTile::kPanelBytes + row * OTile::kRowBytes +
               ((chunk ^ row % 8) << 4);
    }

    // `query`: of the thread's row 0; row 1 is 8 further down.
    __device__ __forceinline__ void write_lse(const WorkTile& tile,
                                              const Sequence<TRAITS.packed>& sequence, int query,
                                              const float (&log_sum_exp)[2]) const {
        const long long row = TRAITS.packed ? tile.head : tile.batch * p.heads + tile.head;
        float* lse = p.lse + row * p.seq_len_q + query;
        if constexpr (TRAITS.packed) lse += sequence.first_query;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            if (lane % 4 == 0 && query + 8 * i < sequence.queries(p)) lse[8 * i] = log_sum_exp[i];
        }
    }

    template <class Place>
    __device__ __forceinline__ void send(const WorkTile& tile,
                                         const Sequence<TRAITS.packed>& sequence,
                                         const Place& place, int first, int end) const {
        ptx::fence_proxy_async_shared();
        sync_warpgroup();
        if (warp == 0 && ptx::elect_sync()) {
            const BoxPlace box =
                sequence.template q_box<64>(first_row<CFG>(tile, warpgroup), tile.batch);
#pragma unroll
            for (int panel = first; panel < end; ++panel) {
                store_box<TRAITS.packed>(o_map, place() + (panel - first) * OTile::kPanelBytes,
                                         64 * panel, tile.head, box);
            }
            ptx::cp_async_bulk_commit_group();
        }
    }
};

}  // namespace fa_tune::sm90
