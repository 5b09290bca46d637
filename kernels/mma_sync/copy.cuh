// Whole tiles between global and shared memory, 16 bytes per thread and step.
//
// The threads form a rectangle of kRowsPerPass rows by kChunksPerPass chunks (common/chunks.cuh).
// 128 threads, 128 columns (16 chunks): 8 rows a pass, and neighbouring lanes read neighbouring
// chunks:
//
//     threads  0..15   row 0   | 16 chunks = 256 consecutive bytes |
//     threads 16..31   row 1   |              ...                  |
//
// A thread keeps one global pointer; a pass further down adds a constant stride to it, and in
// shared memory a constant offset, because kRowsPerPass is a multiple of the swizzle's period
// wherever there is more than one pass.  A pass further to the right adds a constant, too, where
// passes are whole groups of the chunks that the swizzle permutes.
#pragma once

#include "common/swizzle.cuh"
#include "ptx/cp_async.cuh"

namespace fa_tune::mma_sync {

template <typename Tile, int kThreads>
struct CopyPlan {
    static constexpr int kChunksPerPass = chunks_at_once(Tile::kChunks);
    static constexpr int kChunkPasses = (Tile::kChunks + kChunksPerPass - 1) / kChunksPerPass;
    static constexpr int kRowsPerPass = kThreads / kChunksPerPass;
    static constexpr int kRowPasses = Tile::kRows / kRowsPerPass;
    static constexpr int kSwizzleGroup = Tile::kEightChunkGroups ? 8 : 4;
    static constexpr bool kUniformSwizzle =
        kRowsPerPass % 8 == 0 && (kChunkPasses == 1 || kChunksPerPass % kSwizzleGroup == 0);
    static_assert(kRowPasses * kRowsPerPass == Tile::kRows,
                  "the 16-byte chunks of a block must divide evenly among the threads");

    // The thread's first row and chunk.
    __device__ __forceinline__ static int row(int thread) { return thread / kChunksPerPass; }
    __device__ __forceinline__ static int chunk(int thread) { return thread % kChunksPerPass; }

    // Whether rows have a chunk for the thread.
    __device__ __forceinline__ static bool has_chunk(int thread) {
        return Tile::kChunks % kChunksPerPass == 0 || chunk(thread) < Tile::kChunks;
    }

    // Whether its chunk in a pass is one of so many columns.
    template <int kColumns>
    __device__ __forceinline__ static bool has_columns(int thread, int chunk_pass) {
        if constexpr (kColumns == Tile::kColumns) return true;
        return 8 * (chunk(thread) + chunk_pass * kChunksPerPass) < kColumns;
    }

    // Shared-memory offset of the thread's chunk in a pass.
    __device__ __forceinline__ static unsigned offset(int thread, int row_pass, int chunk_pass) {
        if constexpr (kUniformSwizzle) {
            return Tile::offset(row(thread), chunk(thread)) +
                   row_pass * kRowsPerPass * Tile::kRowBytes + chunk_pass * kChunksPerPass * 16;
        } else {
            return Tile::offset(row(thread) + row_pass * kRowsPerPass,
                                chunk(thread) + chunk_pass * kChunksPerPass);
        }
    }

    // The thread's own element of a matrix whose rows are `row_stride` elements apart.
    __device__ __forceinline__ static const unsigned short* source(const unsigned short* matrix,
                                                                   long long row_stride,
                                                                   int thread) {
        return matrix + row(thread) * row_stride + 8 * chunk(thread);
    }
};

// Load a tile into `smem`.  `source` is CopyPlan::source of its row 0.
// kAsync: by cp.async in the caller's current group, else through registers.
// kPartial: rows from `valid_rows` on are filled with zeros and never read.
// kLines: see ptx/cp_async.cuh.  kColumns: of a row of the source, behind which there are zeros.
template <typename Tile, int kThreads, bool kAsync, bool kPartial, bool kLines = true,
          int kColumns = Tile::kColumns>
__device__ __forceinline__ void load_tile(unsigned smem, const unsigned short* source,
                                          long long row_stride, int valid_rows, int thread) {
    using Plan = CopyPlan<Tile, kThreads>;
    if (!Plan::has_chunk(thread)) return;
    const long long pass_stride = row_stride * Plan::kRowsPerPass;
    uint4 staged[kAsync ? 1 : Plan::kRowPasses][kAsync ? 1 : Plan::kChunkPasses];
    // Stay on rows that exist: even a copy of no bytes wants a legal address.
    const bool starts_inside = !kPartial || Plan::row(thread) < valid_rows;
    const unsigned short* pass = starts_inside ? source : source - Plan::row(thread) * row_stride;
#pragma unroll
    for (int i = 0; i < Plan::kRowPasses; ++i) {
        const bool valid = !kPartial || Plan::row(thread) + i * Plan::kRowsPerPass < valid_rows;
#pragma unroll
        for (int j = 0; j < Plan::kChunkPasses; ++j) {
            const unsigned short* from = pass + j * Plan::kChunksPerPass * 8;
            if constexpr (!kAsync) {
                staged[i][j] = valid ? *reinterpret_cast<const uint4*>(from) : uint4{0, 0, 0, 0};
            } else if constexpr (kPartial || kColumns < Tile::kColumns) {
                const bool has = Plan::template has_columns<kColumns>(thread, j);
                ptx::cp_async_cg_16_zfill<kLines>(smem + Plan::offset(thread, i, j),
                                                  has ? from : pass, valid && has ? 16 : 0);
            } else {
                ptx::cp_async_cg_16<kLines>(smem + Plan::offset(thread, i, j), from);
            }
        }
        if (!kPartial || Plan::row(thread) + (i + 1) * Plan::kRowsPerPass < valid_rows) {
            pass += pass_stride;
        }
    }
    if constexpr (!kAsync) {
#pragma unroll
        for (int i = 0; i < Plan::kRowPasses; ++i) {
#pragma unroll
            for (int j = 0; j < Plan::kChunkPasses; ++j) {
                *reinterpret_cast<uint4*>(
                    __cvta_shared_to_generic(smem + Plan::offset(thread, i, j))) = staged[i][j];
            }
        }
    }
}

// Store one warp's rows [first_row, first_row + kRowsPerWarp) of `smem` to global memory;
// `gmem` points at row 0 of the tile.  Only the warp that wrote the rows may store them.
template <typename Tile, int kRowsPerWarp, bool kPartial>
__device__ __forceinline__ void store_warp_rows(unsigned short* gmem, long long row_stride,
                                                unsigned smem, int first_row, int valid_rows,
                                                int lane) {
    static_assert(kRowsPerWarp * Tile::kChunks % 32 == 0, "a warp stores whole passes");
#pragma unroll
    for (int step = 0; step < kRowsPerWarp * Tile::kChunks / 32; ++step) {
        const int index = lane + 32 * step;
        const int row = first_row + index / Tile::kChunks;
        const int chunk = index % Tile::kChunks;
        const uint4 value = *reinterpret_cast<const uint4*>(
            __cvta_shared_to_generic(smem + Tile::offset(row, chunk)));
        if (!kPartial || row < valid_rows) {
            *reinterpret_cast<uint4*>(gmem + row * row_stride + 8 * chunk) = value;
        }
    }
}

}  // namespace fa_tune::mma_sync
