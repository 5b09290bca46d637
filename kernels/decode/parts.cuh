// Parts of a tile and what they make together.
//
// A part has, of every row, the unscaled maximum m of the scores that it saw, the sum l of
// 2^(c (s - m)) over them, c = scale * log2(e), and the products o of these weights with V, not yet
// divided.  Several are combined as
//
//     M = max m_i      a_i = 2^(c m_i - c M)      O = sum a_i o_i / sum a_i l_i
//
// in the order of their keys, so that the result is the same to the bit from run to run.
//
// In memory, fp32: o [places][part_rows][d_head], then (m, l) [places][part_rows].
#pragma once

#include "common/constants.cuh"
#include "common/problem.cuh"
#include "common/scores.cuh"
#include "decode/work.cuh"
#include "mma_sync/element.cuh"
#include "ptx/ex2.cuh"
#include "ptx/global_words.cuh"
#include "ptx/lg2.cuh"

namespace fa_tune::decode {

struct RowSum {
    float max, sum;
};

// Four columns of a row, as its parts are added to them.
struct Combined {
    float scale_log2;  // c
    float max = negative_infinity();
    float shift = 0.f;  // c M
    float sum = 0.f;
    float o[4] = {};

    __device__ __forceinline__ explicit Combined(float scale_log2 = 0.f) : scale_log2(scale_log2) {}

    // The maximum of parts that are added from now on is known.
    __device__ __forceinline__ void raise_max(float highest) {
        highest = fmaxf(max, highest);
        // 2^(-inf - -inf) would be NaN; parts that saw nothing must weigh 2^(-inf) = 0.
        shift = highest == negative_infinity() ? 0.f : __fmul_rn(highest, scale_log2);
        const float a = weight(max);
        max = highest;
        sum *= a;
#pragma unroll
        for (int i = 0; i < 4; ++i) o[i] *= a;
    }
    // The sum of a part; returns what its columns weigh.
    __device__ __forceinline__ float add_sum(const RowSum& row) {
        const float a = weight(row.max);
        sum = fmaf(a, row.sum, sum);
        return a;
    }
    __device__ __forceinline__ void add(const RowSum& row, const float (&part)[4]) {
        const float a = add_sum(row);
#pragma unroll
        for (int i = 0; i < 4; ++i) o[i] = fmaf(a, part[i], o[i]);
    }
    // Of a part's columns, when the maximum of all parts is known.
    __device__ __forceinline__ float weight(float part_max) const {
        return ptx::ex2_approx(__fmul_rn(part_max, scale_log2) - shift);
    }
};

// Where parts lie in memory.
template <int kDV>
struct Parts {
    float* const o;
    float* const sums;
    const int rows;

    __device__ __forceinline__ explicit Parts(const DecodeParams& p)
        : o(p.parts), sums(p.parts + 2ll * p.ctas * p.part_rows * kDV), rows(p.part_rows) {}

    __device__ __forceinline__ float* columns(int place, int row, int quad) const {
        return o + (static_cast<long long>(place) * rows + row) * kDV + 4 * quad;
    }
    __device__ __forceinline__ float* row_sum(int place, int row) const {
        return sums + 2 * (place * rows + row);
    }
};

// What the columns of a finished row are multiplied by; its sink joins its exponents' shift and its
// sum.  A row that saw no key gives 0, its log-sum-exp is -inf; NaN stays NaN.
template <WorkloadTraits TRAITS>
__device__ __forceinline__ float result_factor(const DecodeParams& p, const TileRows& rows,
                                               int head, float& exponent, float& sum) {
    const bool empty = sum == 0.f;
    if (rows.spoilt && !empty) sum = __int_as_float(0x7fffffff);  // NaN
    float weight = 1.f;
    if constexpr (TRAITS.sink) {
        if (empty) exponent = -3e38f;
        weight = add_sink(sink_exponent<TRAITS>(p, head), exponent, sum);
    }
    return empty ? 0.f : weight * rows.v_scale / sum;
}

// Four columns of a finished row to where `target()` says.
template <class Elem, class Target>
__device__ __forceinline__ void write_columns(const float (&o)[4], float factor,
                                              const Target& target) {
    float out[4];
    // Not 0 times O: weights of 0 leave NaN in it where V has NaN.
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = factor == 0.f ? 0.f : o[i] * factor;
    ptx::st_global_v2(target(), Elem::pack(out[0], out[1]), Elem::pack(out[2], out[3]));
}

// The log-sum-exp of a finished row, from its exponents' shift and its sum, both with its sink.
template <WorkloadTraits TRAITS>
__device__ __forceinline__ void write_lse(const DecodeParams& p, const TileRows& rows, int row,
                                          int head, float max, float exponent, float sum) {
    const long long of_batch =
        static_cast<long long>(rows.batch) * p.kv_heads * p.heads_per_kv + head;
    // The maximum's exponent is rounded, the maximum is not.
    const float top = TRAITS.sink ? exponent * kLn2 : max * rows.softmax_scale;
    p.lse[of_batch * p.seq_len_q + rows.query(p, row)] =
        sum == 0.f ? negative_infinity()
                   : top + ptx::lg2_approx(sum) * kLn2 - score_shift<TRAITS>(p);
}

// What a finished row's columns are multiplied by; its log-sum-exp to memory, by one thread.
template <WorkloadTraits TRAITS>
__device__ __forceinline__ float finish_row(const DecodeParams& p, const TileRows& rows, int row,
                                            const Combined& c, bool writes) {
    const int head = rows.head(p, row);
    float sum = c.sum, exponent = c.shift;
    const float factor = result_factor<TRAITS>(p, rows, head, exponent, sum);
    if constexpr (TRAITS.lse) {
        if (writes) write_lse<TRAITS>(p, rows, row, head, c.max, exponent, sum);
    }
    return factor;
}

// Four columns of a finished row to O and, by the thread of its first columns, the log-sum-exp.
template <class Elem, WorkloadTraits TRAITS>
__device__ __forceinline__ void write_result(const DecodeParams& p, const TileRows& rows, int row,
                                             int quad, const Combined& c) {
    const float factor = finish_row<TRAITS>(p, rows, row, c, quad == 0);
    write_columns<Elem>(c.o, factor,
                        [&] { return p.o + rows.offset(p, p.o_strides, row) + 4 * quad; });
}

// Four columns of a row of several parts in memory.
template <int kAtATime>
struct Columns {
    float pair[kAtATime][2], o[kAtATime][4];

    // Of the parts from `first` on, of which there are `parts` in all.
    template <int kDV>
    __device__ __forceinline__ void read(const Parts<kDV>& memory, const Tile& tile, int first,
                                         int parts, int row, int quad) {
#pragma unroll
        for (int i = 0; i < kAtATime; ++i) {
            const int place = tile.place_of_part(min(first + i, parts - 1));
            ptx::ld_global_cg_v2(pair[i], memory.row_sum(place, row));
            ptx::ld_global_cg_v4(o[i], memory.columns(place, row, quad));
        }
    }
    __device__ __forceinline__ void add_to(Combined& total, int first, int parts) const {
        float highest = pair[0][0];
#pragma unroll
        for (int i = 1; i < kAtATime; ++i) highest = fmaxf(highest, pair[i][0]);
        total.raise_max(highest);
#pragma unroll
        for (int i = 0; i < kAtATime; ++i) {
            if (first + i < parts) total.add({pair[i][0], pair[i][1]}, o[i]);
        }
    }
};

// Rows [first_row, end_row) of a tile from its parts in memory, by kThreads threads.  Parts are
// read several at a time, and of kItems quads of columns: what takes time is the way to memory and
// back.
template <class Elem, WorkloadTraits TRAITS, int kDV, int kThreads, int kItems>
__device__ __forceinline__ void combine_rows(const DecodeParams& p, const Parts<kDV>& memory,
                                             const Tile& tile, const TileRows& rows, int first_row,
                                             int end_row, int thread) {
    constexpr int kQuads = kDV / 4, kAtATime = kItems > 2 ? 4 : 8;
    const int parts = tile.parts();
    for (int item = first_row * kQuads + thread; item < end_row * kQuads;
         item += kItems * kThreads) {
        if constexpr (kItems == 1) {
            const int row = item / kQuads, quad = item % kQuads;
            Combined total(rows.softmax_scale * kLog2E);
            for (int first = 0; first < parts; first += kAtATime) {
                Columns<kAtATime> columns;
                columns.read(memory, tile, first, parts, row, quad);
                columns.add_to(total, first, parts);
            }
            write_result<Elem, TRAITS>(p, rows, row, quad, total);
        } else {
            Combined totals[kItems];
#pragma unroll
            for (int j = 0; j < kItems; ++j) totals[j] = Combined(rows.softmax_scale * kLog2E);
            for (int first = 0; first < parts; first += kAtATime) {
                Columns<kAtATime> columns[kItems];
#pragma unroll
                for (int j = 0; j < kItems; ++j) {
                    const int own = min(item + j * kThreads, end_row * kQuads - 1);
                    columns[j].read(memory, tile, first, parts, own / kQuads, own % kQuads);
                }
#pragma unroll
                for (int j = 0; j < kItems; ++j) columns[j].add_to(totals[j], first, parts);
            }
#pragma unroll
            for (int j = 0; j < kItems; ++j) {
                const int own = item + j * kThreads;
                if (own >= end_row * kQuads) break;
                write_result<Elem, TRAITS>(p, rows, own / kQuads, own % kQuads, totals[j]);
            }
        }
    }
}

// A number of every row of a tile, each of which one lane of every warp has.
template <class T, int kRows>
struct OfRows {
    static constexpr int kSets = (kRows + 31) / 32;  // of rows that a lane has one of

    T own[kSets];

    // That of a row, for which all lanes of the warp ask at a time.
    __device__ __forceinline__ T of(int row) const {
        T found = __shfl_sync(kAllLanes, own[0], row % 32);
#pragma unroll
        for (int set = 1; set < kSets; ++set) {
            const T other = __shfl_sync(kAllLanes, own[set], row % 32);
            if (row / 32 == set) found = other;
        }
        return found;
    }
};

// What the results of a tile's rows need besides their columns.
template <int kRows>
struct ResultRows {
    OfRows<float, kRows> factors;
    OfRows<int, kRows> queries;

    // The row that this lane has in a set; `writes`: it is there, and nobody else writes its
    // log-sum-exp.
    template <WorkloadTraits TRAITS>
    __device__ __forceinline__ void set_own(const DecodeParams& p, const TileRows& rows, int set,
                                            int row, const Combined& c, bool writes) {
        factors.own[set] = finish_row<TRAITS>(p, rows, row, c, writes);
        queries.own[set] = rows.query(p, row);
    }
    // Four columns of any row, for which all lanes of the warp ask at a time, if `writes`.
    template <class Elem>
    __device__ __forceinline__ void write(const DecodeParams& p, const TileRows& rows, int row,
                                          int quad, const float (&o)[4], bool writes) const {
        const float factor = factors.of(row);
        const int query = queries.of(row);
        if (!writes) return;
        write_columns<Elem>(
            o, factor, [&] { return p.o + rows.offset(p, p.o_strides, row, query) + 4 * quad; });
    }
};

// All rows of a tile of kRows from its parts in memory, by the kThreads threads of a CTA.  First
// every warp finds what the columns of a row have in common, by a lane for each row.
template <class Elem, WorkloadTraits TRAITS, int kDV, int kRows, int kThreads>
__device__ __forceinline__ void combine_by_rows(const DecodeParams& p, const Parts<kDV>& memory,
                                                const Tile& tile, const TileRows& rows) {
    constexpr int kQuads = kDV / 4, kOwn = kRows * kQuads / kThreads;
    // Most often there are two parts: their way to memory and back is what takes time.
    constexpr int kAtATime = 2, kItems = kOwn < 1 ? 1 : kOwn > 8 ? 8 : kOwn;
    const int parts = tile.parts(), lane = threadIdx.x % 32;
    const auto place_of = [&](int part) { return tile.place_of_part(min(part, parts - 1)); };
    const auto own_row = [&](int set) { return min(32 * set + lane, rows.count - 1); };
    ResultRows<kRows> results;
    OfRows<Combined, kRows> totals;
#pragma unroll
    for (int set = 0; set < totals.kSets; ++set) {
        Combined total(rows.softmax_scale * kLog2E);
        for (int first = 0; first < parts; first += kAtATime) {
            float pairs[kAtATime][2];
#pragma unroll
            for (int i = 0; i < kAtATime; ++i) {
                ptx::ld_global_cg_v2(pairs[i], memory.row_sum(place_of(first + i), own_row(set)));
            }
            float highest = pairs[0][0];
#pragma unroll
            for (int i = 1; i < kAtATime; ++i) highest = fmaxf(highest, pairs[i][0]);
            total.raise_max(highest);
#pragma unroll
            for (int i = 0; i < kAtATime; ++i) {
                if (first + i < parts) total.add_sum({pairs[i][0], pairs[i][1]});
            }
        }
        const bool writes = threadIdx.x < 32 && 32 * set + lane < rows.count;
        results.template set_own<TRAITS>(p, rows, set, own_row(set), total, writes);
        totals.own[set] = total;
    }
    const int items = rows.count * kQuads;
    for (int from = threadIdx.x - lane; from < items; from += kItems * kThreads) {
        const auto item = [&](int j) { return min(from + j * kThreads + lane, items - 1); };
        float o[kItems][4] = {};
        for (int first = 0; first < parts; first += kAtATime) {
            OfRows<float, kRows> weights[kAtATime];
            float columns[kItems][kAtATime][4];
#pragma unroll
            for (int i = 0; i < kAtATime; ++i) {
                const int place = place_of(first + i);
#pragma unroll
                for (int set = 0; set < totals.kSets; ++set) {
                    float pair[2];
                    ptx::ld_global_cg_v2(pair, memory.row_sum(place, own_row(set)));
                    weights[i].own[set] = totals.own[set].weight(pair[0]);
                }
#pragma unroll
                for (int j = 0; j < kItems; ++j) {
                    ptx::ld_global_cg_v4(columns[j][i],
                                         memory.columns(place, item(j) / kQuads, item(j) % kQuads));
                }
            }
#pragma unroll
            for (int j = 0; j < kItems; ++j) {
#pragma unroll
                for (int i = 0; i < kAtATime; ++i) {
                    const float weight = weights[i].of(item(j) / kQuads);
                    if (first + i >= parts) continue;
#pragma unroll
                    for (int c = 0; c < 4; ++c) o[j][c] = fmaf(weight, columns[j][i][c], o[j][c]);
                }
            }
        }
#pragma unroll
        for (int j = 0; j < kItems; ++j) {
            results.template write<Elem>(p, rows, item(j) / kQuads, item(j) % kQuads, o[j],
                                         from + j * kThreads + lane < items);
        }
    }
}

}  // namespace fa_tune::decode
