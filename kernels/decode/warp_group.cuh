// The warps that share a slice of the keys of every block, and what one of them does with it.
//
// A CTA's warps form groups of row_warps.  Each group has a slice of every block's keys, a ring of
// its own in shared memory for it, and a softmax of its own; its warps divide the rows:
//
//     block of keys   |   slice of group 0   |   slice of group 1   | ...
//     rows   warp 0   |         S            |    S  (warp 2)       |
//            warp 1   |         S            |    S  (warp 3)       |
//
// Groups never wait for one another before the end of a tile, so that each always has its loads
// under way.  There their sums are combined as those of parts are (parts.cuh).
#pragma once

#include "common/problem.cuh"
#include "common/swizzle.cuh"
#include "decode/constraints.cuh"
#include "decode/parts.cuh"
#include "decode/work.cuh"
#include "mma_sync/copy.cuh"
#include "mma_sync/element.cuh"
#include "mma_sync/online_softmax.cuh"
#include "ptx/bar.cuh"
#include "ptx/ldmatrix.cuh"

namespace fa_tune::decode {

template <DecodeConfig CFG>
struct Layout : Constraints<CFG> {
    static constexpr int kThreads = 32 * CFG.n_warps;
    static constexpr int kGroups = CFG.n_warps / CFG.row_warps;
    static constexpr int kGroupThreads = 32 * CFG.row_warps;
    static constexpr int kKeys = CFG.B_c / kGroups;  // of a slice
    static constexpr int kWarpRows = CFG.B_r / CFG.row_warps;
    using KVTile = SmemTile<kKeys, CFG.d_head, true>;

    // A group's ring; at a tile's end its sums, whose rows are padded against bank conflicts.
    static constexpr int kStageBytes = 2 * KVTile::kBytes;
    static constexpr int kSumsRowBytes = 4 * (CFG.d_head + 8);
    static constexpr int kRingBytes = CFG.stages * kStageBytes;
    static constexpr int kSumsBytes = CFG.B_r * kSumsRowBytes;
    static constexpr int kGroupBytes = kRingBytes > kSumsBytes ? kRingBytes : kSumsBytes;

    // Behind the groups: (m, l) of each group's rows, and a word.
    static constexpr int kRowSums = kGroups * kGroupBytes;
    static constexpr int kWord = kRowSums + 8 * kGroups * CFG.B_r;

    __device__ __forceinline__ static unsigned sums_at(int group, int row, int column) {
        return group * kGroupBytes + row * kSumsRowBytes + 4 * column;
    }
    __device__ __forceinline__ static unsigned row_sum_at(int group, int row) {
        return kRowSums + 8 * (group * CFG.B_r + row);
    }
};

template <DecodeConfig CFG, WorkloadTraits TRAITS>
struct WarpGroup {
    using L = Layout<CFG>;
    using KVTile = typename L::KVTile;
    using Elem = mma_sync::Element<CFG.dtype>;
    static constexpr int kTilesM = L::kWarpRows / 16;
    static constexpr int kTilesS = L::kKeys / 8;
    static constexpr int kTilesO = CFG.d_head / 8;
    static constexpr int kStepsQK = CFG.d_head / 16;
    static constexpr int kStepsPV = L::kKeys / 16;
    using Softmax = mma_sync::OnlineSoftmax<Elem, kTilesM, kTilesS, kTilesO, true, 0>;
    using Plan = mma_sync::CopyPlan<KVTile, L::kGroupThreads>;
    using StepTile = SmemTile<16, CFG.d_head, true>;  // keys of a k-step
    using StepPlan = mma_sync::CopyPlan<StepTile, L::kGroupThreads>;

    const DecodeParams& p;
    const unsigned smem;  // of the CTA
    const int lane, row_warp, group;
    const LaneAddress<KVTile> k_lane, v_lane;  // in the first stage

    unsigned q[kStepsQK][kTilesM][4];
    int seen[kTilesM][2];  // keys that the lane's rows see
    typename Softmax::Scores s;
    typename Softmax::Probabilities weights;
    typename Softmax::Outputs o;
    Softmax softmax;

    // ldmatrix lane roles: sm80/fwd/warp_tile.cuh has the same.
    __device__ __forceinline__ WarpGroup(const DecodeParams& p, unsigned smem)
        : p(p),
          smem(smem),
          lane(threadIdx.x % 32),
          row_warp(warp() % CFG.row_warps),
          group(warp() / CFG.row_warps),
          k_lane(smem + group * L::kGroupBytes, lane / 16 * 8 + lane % 8, lane / 8 % 2),
          v_lane(smem + group * L::kGroupBytes + KVTile::kBytes, lane % 16, lane / 16),
          softmax(p.softmax_scale) {}

    // Blocks [first, first + count) of a tile: O and the softmax's sums of this warp's rows.
    __device__ __forceinline__ void run(const TileRows& rows, int first, int count) {
        const int keys = rows.seen<TRAITS.causal>(p, rows.count - 1);
        const int all_see = rows.seen<TRAITS.causal>(p, 0);
#pragma unroll
        for (int i = 0; i < CFG.stages - 1; ++i) load(rows, i, first + i, i < count ? keys : 0);
        begin(rows);
        int stage = 0, next_stage = CFG.stages - 1;
        for (int i = 0; i < count; ++i) {
            ptx::cp_async_wait_group<CFG.stages - 2>();
            sync();  // the block is here, and all are done with the last one
            const int next = i + CFG.stages - 1;
            load(rows, next_stage, first + next, next < count ? keys : 0);
            block(stage, (first + i) * CFG.B_c + group * L::kKeys, all_see, i == 0);
            stage = stage + 1 == CFG.stages ? 0 : stage + 1;
            next_stage = next_stage + 1 == CFG.stages ? 0 : next_stage + 1;
        }
        ptx::cp_async_wait_group<0>();
        sync();
    }

    // What `run` found to shared memory, in place of the ring.
    __device__ __forceinline__ void store_sums(int rows) {
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row = row_of(m, half);
                const float sum = quad_sum(softmax.row_sum[m][half] + softmax.block_sum[m][half]);
                if (row >= rows) continue;
                if (lane % 4 == 0) {
                    store(L::row_sum_at(group, row), softmax.row_max[m][half], sum);
                }
#pragma unroll
                for (int n = 0; n < kTilesO; ++n) {
                    store(L::sums_at(group, row, 8 * n + lane % 4 * 2), o[m][n][2 * half],
                          o[m][n][2 * half + 1]);
                }
            }
        }
    }

  private:
    // Broadcast, so that the compiler knows it to be the same in all lanes.
    __device__ __forceinline__ static int warp() {
        return __shfl_sync(kAllLanes, threadIdx.x / 32, 0);
    }
    __device__ __forceinline__ int row_of(int m, int half) const {
        return row_warp * L::kWarpRows + 16 * m + 8 * half + lane / 4;
    }
    __device__ __forceinline__ void sync() const {
        if constexpr (CFG.row_warps == 1) {
            __syncwarp();
        } else {
            ptx::bar_sync(1 + group, L::kGroupThreads);
        }
    }
    __device__ __forceinline__ void store(unsigned offset, float first, float second) const {
        float* const to = reinterpret_cast<float*>(__cvta_shared_to_generic(smem + offset));
        to[0] = first;
        to[1] = second;
    }

    // The group's slice of a block to a stage, in a group of copies of its own; keys from `keys` on
    // are zeros and never read.
    __device__ __forceinline__ void load(const TileRows& rows, int stage, int block, int keys) {
        const int first_key = block * CFG.B_c + group * L::kKeys;
        const int there = keys - first_key;
        const int thread = row_warp * 32 + lane;
        const unsigned to = smem + group * L::kGroupBytes + stage * L::kStageBytes;
        if (keys > 0 && p.cache.pages == nullptr) {
            load_slice(to, p.k, p.k_strides, rows, first_key, there, thread);
            load_slice(to + KVTile::kBytes, p.v, p.v_strides, rows, first_key, there, thread);
        } else if (keys > 0) {
            load_pages(to, rows, first_key, there, thread);
        }
        ptx::cp_async_commit_group();
    }

    __device__ __forceinline__ static void load_slice(unsigned to, const unsigned short* tensor,
                                                      const TensorStrides& strides,
                                                      const TileRows& rows, int first_key,
                                                      int there, int thread) {
        const unsigned short* head =
            tensor + rows.batch * strides.batch + rows.kv_head * strides.head;
        if (there >= L::kKeys) {
            head = Plan::source(head + first_key * strides.seq, strides.seq, thread);
            mma_sync::load_tile<KVTile, L::kGroupThreads, true, false>(to, head, strides.seq,
                                                                       L::kKeys, thread);
        } else {
            // A slice without keys has the address of the first one.
            if (there > 0) head += first_key * strides.seq;
            head = Plan::source(head, strides.seq, thread);
            mma_sync::load_tile<KVTile, L::kGroupThreads, true, true>(to, head, strides.seq, there,
                                                                      thread);
        }
    }

    // The same from pages: each k-step of keys lies in one.
    __device__ __forceinline__ void load_pages(unsigned to, const TileRows& rows, int first_key,
                                               int there, int thread) const {
        const KeyValueCache& cache = p.cache;
#pragma unroll
        for (int i = 0; i < kStepsPV; ++i) {
            const int first = first_key + 16 * i, left = there - 16 * i;
            // A step without keys has the address of the first one.
            const int key = left > 0 ? first : 0;
            const int number = key / cache.page_size;
            const int row = key - number * cache.page_size;
            const long long page = cache.pages[rows.batch * cache.page_stride + number];
            const unsigned at = to + 16 * i * KVTile::kRowBytes;
            load_step(at, source(p.k, p.k_strides, rows, page, row, thread), p.k_strides, left,
                      thread);
            load_step(at + KVTile::kBytes, source(p.v, p.v_strides, rows, page, row, thread),
                      p.v_strides, left, thread);
        }
    }

    __device__ __forceinline__ static const unsigned short* source(const unsigned short* tensor,
                                                                   const TensorStrides& strides,
                                                                   const TileRows& rows,
                                                                   long long page, int row,
                                                                   int thread) {
        return StepPlan::source(
            tensor + page * strides.batch + rows.kv_head * strides.head + row * strides.seq,
            strides.seq, thread);
    }

    __device__ __forceinline__ static void load_step(unsigned to, const unsigned short* from,
                                                     const TensorStrides& strides, int there,
                                                     int thread) {
        mma_sync::load_tile<StepTile, L::kGroupThreads, true, true>(to, from, strides.seq, there,
                                                                    thread);
    }

    // Q to registers; O and the sums are empty.
    __device__ __forceinline__ void begin(const TileRows& rows) {
        softmax.restart();
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row = row_of(m, half);
                const bool real = row < rows.count;
                seen[m][half] = rows.seen<TRAITS.causal>(p, row);
                const auto* from = reinterpret_cast<const unsigned*>(
                    p.q + (real ? rows.offset(p, p.q_strides, row) : 0) + lane % 4 * 2);
#pragma unroll
                for (int t = 0; t < kStepsQK; ++t) {
                    q[t][m][half] = real ? from[8 * t] : 0;
                    q[t][m][half + 2] = real ? from[8 * t + 4] : 0;
                }
            }
#pragma unroll
            for (int n = 0; n < kTilesO; ++n) {
#pragma unroll
                for (int i = 0; i < 4; ++i) o[m][n][i] = 0.f;
            }
        }
    }

    // S = Q K^T of the slice in a stage, its softmax, and O += P V.
    __device__ __forceinline__ void block(int stage, int first_key, int all_see, bool first) {
        const auto k = k_lane.moved(stage * L::kStageBytes);
        const auto v = v_lane.moved(stage * L::kStageBytes);
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
            for (int n = 0; n < kTilesS; ++n) {
#pragma unroll
                for (int i = 0; i < 4; ++i) s[m][n][i] = 0.f;
            }
        }
#pragma unroll
        for (int t = 0; t < kStepsQK; ++t) {
#pragma unroll
            for (int n = 0; n < kTilesS / 2; ++n) {
                unsigned b[4];
                ptx::ldmatrix_x4(b, k.at(t, 16 * n));
#pragma unroll
                for (int m = 0; m < kTilesM; ++m) {
                    Elem::mma(s[m][2 * n], q[t][m], b[0], b[1]);
                    Elem::mma(s[m][2 * n + 1], q[t][m], b[2], b[3]);
                }
            }
        }
        if (first_key + L::kKeys > all_see) mask(first_key);
        softmax.advance(s, o, first);
#pragma unroll
        for (int t = 0; t < kStepsPV; ++t) softmax.exponentiate(s, weights, t);
#pragma unroll
        for (int t = 0; t < kStepsPV; ++t) {
#pragma unroll
            for (int n = 0; n < kTilesO / 2; ++n) {
                unsigned b[4];
                ptx::ldmatrix_x4_trans(b, v.at(n, 16 * t));
#pragma unroll
                for (int m = 0; m < kTilesM; ++m) {
                    Elem::mma(o[m][2 * n], weights[m][t], b[0], b[1]);
                    Elem::mma(o[m][2 * n + 1], weights[m][t], b[2], b[3]);
                }
            }
        }
    }

    __device__ __forceinline__ void mask(int first_key) {
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
            for (int n = 0; n < kTilesS; ++n) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int key = first_key + 8 * n + lane % 4 * 2 + i % 2;
                    if (key >= seen[m][i / 2]) s[m][n][i] = negative_infinity();
                }
            }
        }
    }
};

}  // namespace fa_tune::decode
