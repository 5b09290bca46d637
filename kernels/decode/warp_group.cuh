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
#include "common/scores.cuh"
#include "decode/layout.cuh"
#include "decode/operands.cuh"
#include "decode/parts.cuh"
#include "decode/queries.cuh"
#include "decode/work.cuh"
#include "mma_sync/copy.cuh"
#include "mma_sync/online_softmax.cuh"
#include "ptx/bar.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/tid.cuh"

namespace fa_tune::decode {

template <DecodeConfig CFG, WorkloadTraits TRAITS>
struct WarpGroup {
    using L = Layout<CFG>;
    using KTile = typename L::KTile;
    using VTile = typename L::VTile;
    using Ops = Operands<CFG>;
    using Elem = typename Ops::Elem;
    static constexpr int kTilesM = L::kWarpRows / 16;
    static constexpr int kTilesS = L::kKeys / 8;
    static constexpr int kTilesO = CFG.padded_d_v() / 8;
    static constexpr int kStepsQK = CFG.padded_d() / 16;
    static constexpr int kStepsPV = L::kKeys / 16;
    // Groups of copies of a block.  K comes alone, so that scores are computed while V is on its
    // way, unless other CTAs of the multiprocessor are at work meanwhile.
    static constexpr int kCopies = CFG.ctas_per_sm == 1 ? 2 : 1;
    using Softmax = mma_sync::OnlineSoftmax<Elem, kTilesM, kTilesS, kTilesO, true, 0>;

    const DecodeParams& p;
    const unsigned smem;  // of the CTA
    int lane;
    const int row_warp, group;
    const LaneAddress<KTile> k_lane;  // in the first stage
    const LaneAddress<VTile> v_lane;

    unsigned q[kStepsQK][kTilesM][4];
    int seen[kTilesM][2];    // the lane's rows see the keys before this one
    int unseen[kTilesM][2];  // with a window, and none before this one
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
          v_lane(smem + group * L::kGroupBytes + KTile::kBytes, lane % 16, lane / 16),
          softmax(p.softmax_scale) {}

    // The keys of a tile: where those of its head lie in one piece, from this thread's first chunk
    // on; and those that its rows see: any of them those before `any`, all of them those from
    // all_from to all_to.
    struct Source {
        const unsigned short *k, *v;
        int any, all_from, all_to;
    };
    __device__ __forceinline__ Source source_of(const TileRows& rows) const {
        return {first_chunk<KTile>(p.k, p.k_strides, rows),
                first_chunk<VTile>(p.v, p.v_strides, rows),
                rows.seen<TRAITS.causal>(p, rows.count - 1),
                TRAITS.window ? rows.unseen(p, rows.count - 1) : 0, rows.seen<TRAITS.causal>(p, 0)};
    }

    // Blocks [first, first + count) of keys: O and the softmax's sums of this warp's rows.
    __device__ __forceinline__ void run(const TileRows& rows, const Source& source, int first,
                                        int count) {
        SharedQueries<CFG> queries;
        if constexpr (CFG.shared_queries) queries.load(p, rows);
        int stage = 0, next_stage = CFG.stages - 1;
        // Not unrolled, since code comes from memory, too.
#pragma unroll 1
        for (int i = 0; i < CFG.stages - 1; ++i) {
            load<TRAITS.window>(rows, source, i, first + i, i < count ? source.any : 0);
        }
        begin(rows);
        if constexpr (CFG.shared_queries) take(rows, queries);
#pragma unroll 1
        for (int i = 0; i < count; ++i) {
            ptx::cp_async_wait_group<kCopies*(CFG.stages - 1) - 1>();
            sync();  // the block is here, or its K, and all are done with the last one
            const int next = i + CFG.stages - 1;
            load<false>(rows, source, next_stage, first + next, next < count ? source.any : 0);
            weigh(rows, stage, (first + i) * CFG.B_c + group * L::kKeys, source, i == 0);
            if constexpr (kCopies == 2) {
                ptx::cp_async_wait_group<kCopies*(CFG.stages - 1)>();
                sync();  // V is here
            }
            add_values(stage);
            stage = stage + 1 == CFG.stages ? 0 : stage + 1;
            next_stage = next_stage + 1 == CFG.stages ? 0 : next_stage + 1;
        }
        ptx::cp_async_wait_group<0>();
        sync();
    }

    // What `run` found to shared memory, in place of the ring.
    __device__ __forceinline__ void store_sums(int rows) {
        read_lane();
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
                for_pairs(m, half, [&](int column, float first, float second) {
                    store(L::sums_at(group, row, column), first, second);
                });
            }
        }
    }

    // What `run` found to memory, if no other group has found anything: the result, or the part of
    // a tile that has several.
    __device__ __forceinline__ void store_alone(const Tile& tile, const TileRows& rows) {
        read_lane();
        const Parts<CFG.d_v()> memory(p);
        const int place = tile.place(blockIdx.x);
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row = row_of(m, half);
                Combined found(rows.softmax_scale * kLog2E);
                found.max = softmax.row_max[m][half];
                found.shift = softmax.shift[m][half];
                found.sum = quad_sum(softmax.row_sum[m][half] + softmax.block_sum[m][half]);
                if (row >= rows.count) continue;
                if (tile.parts() == 1) {
                    write_row(rows, row, found, m, half);
                } else {
                    write_part_row(memory, place, row, found, m, half);
                }
            }
        }
    }

  private:
    // Broadcast, so that the compiler knows it to be the same in all lanes.
    __device__ __forceinline__ static int warp() {
        return __shfl_sync(kAllLanes, threadIdx.x / 32, 0);
    }
    // Anew, so that no addresses of a tile's end are kept in registers through the loop.
    __device__ __forceinline__ void read_lane() { lane = ptx::tid_x() % 32; }

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
    // The pairs of neighbouring columns that this lane has of one of its rows.
    template <class Take>
    __device__ __forceinline__ void for_pairs(int m, int half, const Take& take) const {
#pragma unroll
        for (int n = 0; n < kTilesO; n += 2) {
            const float (&first)[4] = o[m][n], (&second)[4] = o[m][n + 1];
            const int column = Ops::o_column(n, lane, 0), i = 2 * half;
            if constexpr (Ops::kNarrow) {
                take(column, first[i], second[i]);
                take(column + 2, first[i + 1], second[i + 1]);
            } else {
                take(column, first[i], first[i + 1]);
                if (8 * (n + 1) < CFG.d_v()) {
                    take(Ops::o_column(n + 1, lane, 0), second[i], second[i + 1]);
                }
            }
        }
    }
    // This lane's columns of a finished row to O.
    __device__ __forceinline__ void write_row(const TileRows& rows, int row, const Combined& found,
                                              int m, int half) const {
        const float factor = finish_row<TRAITS>(p, rows, row, found, lane % 4 == 0);
        unsigned short* const to = p.o + rows.offset(p, p.o_strides, row);
        for_pairs(m, half, [&](int column, float first, float second) {
            // As in write_columns.
            const unsigned pair = Elem::pack(first * factor, second * factor);
            *reinterpret_cast<unsigned*>(to + column) = factor == 0.f ? 0u : pair;
        });
    }
    // The same to a part of the tile.
    __device__ __forceinline__ void write_part_row(const Parts<CFG.d_v()>& memory, int place,
                                                   int row, const Combined& found, int m,
                                                   int half) const {
        if (lane % 4 == 0) {
            ptx::st_global_cg_v2(memory.row_sum(place, row), found.max, found.sum);
        }
        float* const to = memory.columns(place, row, 0);
        for_pairs(m, half, [&](int column, float first, float second) {
            ptx::st_global_cg_v2(to + column, first, second);
        });
    }
    // This thread's first chunk of the first key of the tile's head.
    template <class Tile>
    __device__ __forceinline__ const unsigned short* first_chunk(const unsigned short* tensor,
                                                                 const TensorStrides& strides,
                                                                 const TileRows& rows) const {
        return mma_sync::CopyPlan<Tile, L::kGroupThreads>::source(
            place(tensor, strides, rows, rows.batch, 0), strides.seq, row_warp * 32 + lane);
    }
    __device__ __forceinline__ void store(unsigned offset, float first, float second) const {
        float* const to = reinterpret_cast<float*>(__cvta_shared_to_generic(smem + offset));
        to[0] = first;
        to[1] = second;
    }

    // The group's slice of a block to a stage, in kCopies groups of copies, the first of which has
    // K; keys from `keys` on are zeros and never read.  kMayBegin: so are, by whole k-steps, those
    // in front of the window, which a tile's first block may have.
    template <bool kMayBegin>
    __device__ __forceinline__ void load(const TileRows& rows, const Source& source, int stage,
                                         int block, int keys) {
        const int first_key = block * CFG.B_c + group * L::kKeys;
        const int there = keys - first_key;
        const unsigned to = smem + group * L::kGroupBytes + stage * L::kStageBytes;
        const KeyValueCache& cache = p.cache;
        if (keys > 0 && cache.pages == nullptr && there >= L::kKeys &&
            first_key + L::kKeys <= rows.new_from) {
            load_whole<KTile, Ops::kColumnsK>(to, source.k, p.k_strides.seq, first_key);
            if constexpr (kCopies == 2) ptx::cp_async_commit_group();
            load_whole<VTile, Ops::kColumnsV>(to + KTile::kBytes, source.v, p.v_strides.seq,
                                              first_key);
        } else {
            if (keys > 0) load_steps<kMayBegin>(to, rows, first_key, there);
            if constexpr (kCopies == 2) ptx::cp_async_commit_group();
        }
        ptx::cp_async_commit_group();
    }

    template <class Tile, int kColumns>
    __device__ __forceinline__ void load_whole(unsigned to, const unsigned short* from,
                                               long long stride, int first_key) const {
        mma_sync::load_tile<Tile, L::kGroupThreads, true, false, !CFG.sectors, kColumns>(
            to, from + first_key * stride, stride, L::kKeys, row_warp * 32 + lane);
    }

    // The same by k-steps of keys, each of which lies in one page; of those from `there` on there
    // are none.
    template <bool kMayBegin>
    __device__ __forceinline__ void load_steps(unsigned to, const TileRows& rows, int first_key,
                                               int there) const {
        const KeyValueCache& cache = p.cache;
#pragma unroll
        for (int i = 0; i < kStepsPV; ++i) {
            const int first = first_key + 16 * i;
            const bool unseen = kMayBegin && first + 16 <= rows.first_diagonal;  // by query 0
            const Step step{first, unseen ? 0 : there - 16 * i, rows.new_from - first};
            // A step without keys has the address of the first one.
            int key = step.there > 0 ? step.first : 0;
            long long page = rows.batch;
            if (TRAITS.window && cache.pages != nullptr && step.there <= 0) {
                page = 0;  // in front of a window pages may be gone, that of the first key too
            } else if (cache.pages != nullptr) {
                const int number = quotient(key, p.by.page_size);
                key -= number * cache.page_size;
                page = cache.pages[rows.batch * cache.page_stride + number];
            }
            using K = typename Ops::template KTile<16>;
            using V = typename Ops::template VTile<16>;
            load_step<K, Ops::kColumnsK>(
                to + 16 * i * KTile::kRowBytes, place(p.k, p.k_strides, rows, page, key),
                p.k_strides.seq,
                place(cache.new_k, cache.new_k_strides, rows, rows.batch, -step.old),
                cache.new_k_strides.seq, step, rows.last);
            load_step<V, Ops::kColumnsV>(
                to + KTile::kBytes + 16 * i * VTile::kRowBytes,
                place(p.v, p.v_strides, rows, page, key), p.v_strides.seq,
                place(cache.new_v, cache.new_v_strides, rows, rows.batch, -step.old),
                cache.new_v_strides.seq, step, rows.last);
        }
    }

    // 16 keys: the first of them, how many there are, and how many of them are old.
    struct Step {
        int first, there, old;
    };

    // Where a row of the tile's head lies.
    __device__ __forceinline__ static const unsigned short* place(const unsigned short* tensor,
                                                                  const TensorStrides& strides,
                                                                  const TileRows& rows,
                                                                  long long batch, int row) {
        return tensor + batch * strides.batch + rows.kv_head * strides.head + row * strides.seq;
    }

    // Rows of `cached`, or where they are new, of `added`; these are written to `cached` as well if
    // `writes`.
    template <class Tile, int kColumns>
    __device__ __forceinline__ void load_step(unsigned to, const unsigned short* cached,
                                              long long cached_stride, const unsigned short* added,
                                              long long added_stride, const Step& step,
                                              bool writes) const {
        using Plan = mma_sync::CopyPlan<Tile, L::kGroupThreads>;
        const int thread = row_warp * 32 + lane;
        if (step.old >= min(step.there, 16)) {
            mma_sync::load_tile<Tile, L::kGroupThreads, true, true, !CFG.sectors, kColumns>(
                to, Plan::source(cached, cached_stride, thread), cached_stride, step.there, thread);
            return;
        }
        if (!Plan::has_chunk(thread)) return;
#pragma unroll 1
        for (int i = 0; i < Plan::kRowPasses; ++i) {
            const int row = Plan::row(thread) + i * Plan::kRowsPerPass;
            const bool there = row < step.there, is_new = there && row >= step.old;
            const int column = 8 * Plan::chunk(thread);
            const unsigned short* const old_place = cached + (there ? row : 0) * cached_stride;
            const unsigned short* const from = is_new ? added + row * added_stride : old_place;
#pragma unroll
            for (int j = 0; j < Plan::kChunkPasses; ++j) {
                const int at = column + j * Plan::kChunksPerPass * 8;
                const unsigned place =
                    to + Tile::offset(row, Plan::chunk(thread) + j * Plan::kChunksPerPass);
                const bool has = Plan::template has_columns<kColumns>(thread, j);
                ptx::cp_async_cg_16_zfill<!CFG.sectors>(place, has ? from + at : from,
                                                        there && has ? 16 : 0);
                if (is_new && writes && has) {
                    *reinterpret_cast<uint4*>(const_cast<unsigned short*>(old_place + at)) =
                        *reinterpret_cast<const uint4*>(from + at);
                }
            }
        }
    }

    // Q to registers, unless warps share it; O and the sums are empty.
    __device__ __forceinline__ void begin(const TileRows& rows) {
        softmax.restart();
        softmax.scale = rows.softmax_scale;
        softmax.scale_log2 = rows.softmax_scale * kLog2E;
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row = row_of(m, half);
                const bool real = row < rows.count;
                seen[m][half] = rows.seen<TRAITS.causal>(p, row);
                if constexpr (TRAITS.window) unseen[m][half] = rows.unseen(p, row);
                if constexpr (CFG.shared_queries) continue;
                const auto* from = reinterpret_cast<const unsigned*>(
                    p.q + (real ? rows.offset(p, p.q_strides, row) : 0) + Ops::q_column(lane));
#pragma unroll
                for (int t = 0; t < kStepsQK; ++t) {
                    q[t][m][half] = real ? signed_as(rows, from[Ops::q_word(t, 0)]) : 0;
                    const bool has = real && 16 * t + 8 < CFG.d_head;  // else there is one half
                    q[t][m][half + 2] = has ? signed_as(rows, from[Ops::q_word(t, 1)]) : 0;
                }
            }
#pragma unroll
            for (int n = 0; n < kTilesO; ++n) {
#pragma unroll
                for (int i = 0; i < 4; ++i) o[m][n][i] = 0.f;
            }
        }
    }

    // Q to registers by way of shared memory.  By all warps of the CTA.
    __device__ __forceinline__ void take(const TileRows& rows, const SharedQueries<CFG>& queries) {
        queries.share(smem + L::kQueries);
        __syncthreads();
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
            for (int t = 0; t < kStepsQK; ++t) {
                const int row = row_warp * L::kWarpRows + 16 * m;
                SharedQueries<CFG>::operand(q[t][m], smem + L::kQueries, row, t, lane);
#pragma unroll
                for (int i = 0; i < 4; ++i) q[t][m][i] = signed_as(rows, q[t][m][i]);
            }
        }
    }

    // Two elements of Q as they meet K.
    __device__ __forceinline__ static unsigned signed_as(const TileRows& rows, unsigned pair) {
        return rows.negative ? pair ^ 0x80008000u : pair;
    }

    // S = Q K^T of the slice in a stage, and its softmax.
    __device__ __forceinline__ void weigh(const TileRows& rows, int stage, int first_key,
                                          const Source& source, bool first) {
        const auto k = k_lane.moved(stage * L::kStageBytes);
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
            for (int n = 0; n < kTilesS; ++n) {
#pragma unroll
                for (int i = 0; i < 4; ++i) s[m][n][i] = 0.f;
            }
        }
#pragma unroll
        for (int pair = 0; pair < kStepsQK / Ops::kStepsOfPair; ++pair) {
#pragma unroll
            for (int n = 0; n < kTilesS / 2; ++n) {
                unsigned b[Ops::kStepsOfPair][2][2];
                Ops::load_k(b, k, pair, 16 * n);
#pragma unroll
                for (int i = 0; i < Ops::kStepsOfPair; ++i) {
#pragma unroll
                    for (int m = 0; m < kTilesM; ++m) {
                        const auto& a = q[pair * Ops::kStepsOfPair + i][m];
                        Elem::mma(s[m][2 * n], a, b[i][0][0], b[i][0][1]);
                        Elem::mma(s[m][2 * n + 1], a, b[i][1][0], b[i][1][1]);
                    }
                }
            }
        }
        const bool hides =
            first_key + L::kKeys > source.all_to || (TRAITS.window && first_key < source.all_from);
        if constexpr (TRAITS.softcap) {
            if (hides) mask(first_key);  // NaN of one score would be that of others
            cap(rows.score_scale);
        }
        if (hides) mask(first_key);
        softmax.advance(s, o, first);
#pragma unroll
        for (int t = 0; t < kStepsPV; ++t) softmax.exponentiate(s, weights, t);
    }

    // O += P V.
    __device__ __forceinline__ void add_values(int stage) {
        const auto v = v_lane.moved(stage * L::kStageBytes);
#pragma unroll
        for (int t = 0; t < kStepsPV; ++t) {
#pragma unroll
            for (int pair = 0; pair < kTilesO / 2 / Ops::kStepsOfPair; ++pair) {
                unsigned b[2 * Ops::kStepsOfPair][2];
                Ops::load_v(b, v, pair, 16 * t);
#pragma unroll
                for (int i = 0; i < 2 * Ops::kStepsOfPair; ++i) {
#pragma unroll
                    for (int m = 0; m < kTilesM; ++m) {
                        Elem::mma(o[m][pair * 2 * Ops::kStepsOfPair + i], weights[m][t], b[i][0],
                                  b[i][1]);
                    }
                }
            }
        }
    }

    // The soft cap (common/scores.cuh): four scores at a time, of one row each, which a NaN among
    // them makes NaN anyway.
    __device__ __forceinline__ void cap(float score_scale) {
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
            for (int n = 0; n < kTilesS; n += 2) {
#pragma unroll
                for (int i = 0; i < 4; i += 2) {
                    float four[4] = {s[m][n][i], s[m][n][i + 1], s[m][n + 1][i],
                                     s[m][n + 1][i + 1]};
                    one_over_one_and_power(four, score_scale);
                    s[m][n][i] = four[0];
                    s[m][n][i + 1] = four[1];
                    s[m][n + 1][i] = four[2];
                    s[m][n + 1][i + 1] = four[3];
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
                    const bool hidden =
                        key >= seen[m][i / 2] || (TRAITS.window && key < unseen[m][i / 2]);
                    if (hidden) s[m][n][i] = negative_infinity();
                }
            }
        }
    }
};

}  // namespace fa_tune::decode
