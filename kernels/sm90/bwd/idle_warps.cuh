// What the three warps of warpgroup 0 that do not load do in one pass: they prepare blocks of
// queries and finish others (query_shares.cuh).
//
// They have few registers.  What is on its way to a thread is in shared memory, and each reads what
// it has copied itself.
#pragma once

#include "common/backward/prepare.cuh"
#include "ptx/bar.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/global_words.cuh"
#include "ptx/shared_words.cuh"
#include "sm90/bwd/gradients.cuh"
#include "sm90/bwd/named_barriers.cuh"
#include "sm90/bwd/query_shares.cuh"
#include "sm90/bwd/scheduler.cuh"

namespace fa_tune::sm90::backward {

template <Sm90BackwardConfig CFG, WorkloadTraits TRAITS>
struct IdleWarps {
    static constexpr int kThreads = kIdleThreads;
    static constexpr int kCopies = kIdleBytes / (16 * kThreads);  // of a thread, at a time

    const BackwardParams& p;
    const unsigned room;  // kIdleBytes of shared memory
    const int thread;

    __device__ __forceinline__ void run(int tile) const {
        const auto shares = QueryShares::of<TRAITS.packed>(p, CFG.B_c);
        const Range ahead = shares.blocks_of(tile + shares.distance);
#pragma unroll 1
        for (int number = ahead.first; number < ahead.end; ++number) {
            prepare(number);
            ptx::bar_sync(static_cast<int>(NamedBarrier::IDLE), kThreads);
            if (thread == 0) ptx::atom_add_acq_rel(p.prepared + number / shares.blocks, 1);
        }
        const Range behind = shares.blocks_of(tile - shares.distance);
#pragma unroll 1
        for (int number = behind.first; number < behind.end; ++number) {
            const unsigned* const done = p.done + number / shares.blocks;
            if (thread % 32 == 0) {
                while (ptx::ld_acquire(done) <
                       static_cast<unsigned>(kConsumerWarps * shares.tiles)) {
                }
            }
            __syncwarp();
            finish(number);
        }
    }

  private:
    __device__ __forceinline__ unsigned place(int copy) const {
        return room + 16 * (kThreads * copy + thread);
    }

    // As prepare_rows.
    __device__ __forceinline__ void prepare(int number) const {
        constexpr int kChunks = CFG.d_head / 8;
        constexpr int kOfRow = power_of_two_from(kChunks);
        constexpr int kAtOnce = kThreads / kOfRow;
        const auto block = QueryBlock<TRAITS.packed>::of(p, number);
        const int& queries = block.sequence.queries(p);
        if (TRAITS.packed && queries == 0) return;
        const auto rows = block.rows(p);
        const int chunk = thread % kOfRow;
#pragma unroll 1
        for (int first = thread / kOfRow; first < kPreparedRows; first += kCopies / 2 * kAtOnce) {
#pragma unroll 1
            for (int i = 0; i < kCopies / 2; ++i) {
                const int row = min(block.first_row + first + i * kAtOnce, queries - 1);
                const int column = min(chunk, kChunks - 1);
                ptx::cp_async_cg_16(place(2 * i), rows.of(p.o, p.o_strides, row) + column);
                ptx::cp_async_cg_16(place(2 * i + 1), rows.of(p.d_o, p.do_strides, row) + column);
            }
            ptx::cp_async_commit_group();
            if (first < kAtOnce) clear(number);
            ptx::cp_async_wait_group<0>();
#pragma unroll 1
            for (int i = 0; i < kCopies / 2; ++i) {
                const int of_block = first + i * kAtOnce, row = block.first_row + of_block;
                if (of_block >= kPreparedRows) break;
                int o[4], d_o[4];
                ptx::ld_shared_v4(o, place(2 * i));
                ptx::ld_shared_v4(d_o, place(2 * i + 1));
                float sum = 0.f;
                if (row < queries && chunk < kChunks) {
#pragma unroll
                    for (int w = 0; w < 4; ++w) sum += product_of_pairs<CFG.dtype>(o[w], d_o[w]);
                }
#pragma unroll
                for (int other = kOfRow / 2; other > 0; other /= 2) {
                    sum += __shfl_xor_sync(kAllLanes, sum, other);
                }
                if (chunk != 0) continue;
                if constexpr (TRAITS.lse) {
                    if (row < queries) sum -= rows.of_lse(p.grad_lse, row);
                }
                p.delta[rows.padded(row)] = sum;
            }
        }
#pragma unroll 1
        for (int of_block = thread; of_block < kPreparedRows; of_block += kThreads) {
            const int row = block.first_row + of_block;
            p.lse2[rows.padded(row)] =
                row < queries ? to_base_2<TRAITS>(p, rows.of_lse(p.lse, row)) : infinity();
        }
    }

    __device__ __forceinline__ void clear(int number) const {
        float* const sums =
            p.dq_sum + static_cast<long long>(number) * kPreparedRows * CFG.d_head + 4 * thread;
        const float zeros[4] = {};
#pragma unroll 4
        for (int i = 4 * thread; i < kPreparedRows * CFG.d_head; i += 4 * kThreads) {
            ptx::st_global_cg_v4(sums + (i - 4 * thread), zeros);
        }
    }

    // As finish.cuh: a warp has 16 rows of a part.
    __device__ __forceinline__ void finish(int number) const {
        constexpr int kAcross = (CFG.d_head + 63) / 64, kWarps = kThreads / 32;
        constexpr int kUnits = kPreparedRows / 16 * kAcross;
        constexpr int kAtOnce = kCopies / 8;
        const auto block = QueryBlock<TRAITS.packed>::of(p, number);
        const int& queries = block.sequence.queries(p);
        if (TRAITS.packed && queries == 0) return;
        const auto rows = block.rows(p);
        const float scale = gradient_scale<TRAITS>(p);
        const int lane = thread % 32;
#pragma unroll 1
        for (int first = thread / 32; first < kUnits; first += kWarps * kAtOnce) {
#pragma unroll 1
            for (int i = 0; i < kAtOnce; ++i) {
                const int unit = min(first + i * kWarps, kUnits - 1);
                const float* const from =
                    p.dq_sum + static_cast<long long>(number) * kPreparedRows * CFG.d_head +
                    offset_of_unit(unit) + 4 * lane;
                for (int j = 0; j < columns_of_unit(unit) / 8; ++j) {
                    ptx::cp_async_cg_16(place(8 * i + j), from + 128 * j);
                }
            }
            ptx::cp_async_commit_group();
            ptx::cp_async_wait_group<0>();
#pragma unroll 1
            for (int i = 0; i < kAtOnce; ++i) {
                const int unit = first + i * kWarps;
                if (unit >= kUnits) break;
                const int row =
                    block.first_row + unit / (4 * kAcross) * 64 + unit % 4 * 16 + lane / 4;
                const int column = unit / 4 % kAcross * 64 + lane % 2 * 8 + lane % 4 / 2 * 4;
#pragma unroll 1
                for (int j = 0; j < columns_of_unit(unit) / 8; j += 2) {
                    // Columns 8j + 2 (lane % 4) and + 1 of two rows, and 8 columns on.
                    int low[4], high[4];
                    ptx::ld_shared_v4(low, place(8 * i + j));
                    ptx::ld_shared_v4(high, place(8 * i + j + 1));
#pragma unroll
                    for (int down = 0; down < 2; ++down) {
                        const auto pair = [&](const int (&four)[4]) {
                            return rounded<CFG.dtype>(__int_as_float(four[2 * down]) * scale,
                                                      __int_as_float(four[2 * down + 1]) * scale);
                        };
                        // Of two neighbours one has four columns of j then, the other of j + 1.
                        unsigned words[2] = {pair(low), pair(high)};
                        const bool odd = lane % 2;
                        const unsigned got =
                            __shfl_xor_sync(kAllLanes, odd ? words[0] : words[1], 1);
                        (odd ? words[0] : words[1]) = got;
                        if (row + 8 * down >= queries) continue;
                        ptx::st_global_v2(
                            rows.place(p.dq, p.dq_strides, row + 8 * down) + column + 8 * j,
                            words[0], words[1]);
                    }
                }
            }
        }
    }
    // Of the 16 rows of a part.
    __device__ __forceinline__ static int columns_of_unit(int unit) {
        constexpr int kAcross = (CFG.d_head + 63) / 64;
        return min(64, CFG.d_head - unit / 4 % kAcross * 64);
    }
    __device__ __forceinline__ static int offset_of_unit(int unit) {
        constexpr int kAcross = (CFG.d_head + 63) / 64;
        return unit / (4 * kAcross) * 64 * CFG.d_head + unit / 4 % kAcross * 64 * 64 +
               unit % 4 * 16 * columns_of_unit(unit);
    }
};

}  // namespace fa_tune::sm90::backward
