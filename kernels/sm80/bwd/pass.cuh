// A pass over the tiles of keys, or in two passes also one over tiles of queries: the same loop
// with the parts of keys and queries exchanged.
//
//     rows       what a CTA keeps       keys     K, V      or    queries   Q, dO
//     columns    what it walks over     queries  Q, dO           keys      K, V
//
//     S = scale rows . columns    P = exp2(S - LSE)    dP = rows_v . columns_v    dS = P (dP - D)
//     keys:      dK += dS Q    dV += P dO    and in one pass  dQ = dS^T K
//     queries:   dQ += dS K
//
// Warps are a rectangle of row warps by column warps.  A warp has B_c / row warps rows of S and dP,
// and B_r / column warps neighbouring columns; of the gradients the same rows, and every so many 16
// columns of d_head.  Its own P and dS are operands of the gradients from where they are, in
// registers; those of other column warps come through shared memory.
//
//     copies of a step's columns have arrived                      __syncthreads()
//         two stages: begin those of the next
//     S, P            P to shared memory, if column warps share rows; dV of the own part
//     dP, dS          dS likewise, or if dQ is made of it; dK or dQ of the own part
//         column warps have met: the same of the others' parts     bar.sync
//     all are done with columns, and dS is there                   __syncthreads()
//         one stage: begin the copies of the next step
//     dQ = dS^T K, added to sums in memory
#pragma once

#include "common/backward/mask.cuh"
#include "common/backward/tile_order.cuh"
#include "common/constants.cuh"
#include "mma_sync/copy.cuh"
#include "mma_sync/element.cuh"
#include "mma_sync/product.cuh"
#include "ptx/bar.cuh"
#include "ptx/ex2.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/shared_pairs.cuh"
#include "ptx/shared_words.cuh"
#include "sm80/bwd/constraints.cuh"
#include "sm80/bwd/shared_memory.cuh"
#include "sm80/bwd/sums.cuh"

namespace fa_tune::sm80::backward {

enum class Rows { KEYS, QUERIES };

template <Sm80BackwardConfig CFG, WorkloadTraits TRAITS, Rows kRows>
struct Pass : Constraints<CFG, TRAITS> {
    using Order = TileOrder<TRAITS.packed>;
    using Layout = SharedMemory<CFG>;
    using Elem = mma_sync::Element<CFG.dtype>;
    using RowTile = typename Layout::RowTile;
    using RowTileV = typename Layout::RowTileV;
    using ColumnTile = typename Layout::ColumnTile;
    using ColumnTileV = typename Layout::ColumnTileV;
    using ScoreTile = typename Layout::ScoreTile;
    static constexpr bool kOfKeys = kRows == Rows::KEYS;
    static constexpr bool kAddsDq = kOfKeys && !CFG.two_pass;
    static constexpr int kThreads = 32 * CFG.n_warps;
    static constexpr int kColumnWarps = CFG.column_warps;
    static constexpr int kRowWarps = CFG.n_warps / kColumnWarps;
    static constexpr int kWarpRows = CFG.B_c / kRowWarps;
    static constexpr int kWarpColumns = CFG.B_r / kColumnWarps;
    static constexpr int kTilesM = kWarpRows / 16;
    static constexpr int kTilesS = kWarpColumns / 8;
    static constexpr int kTilesD = CFG.d_head / 8 / kColumnWarps;
    static constexpr int kTilesV = CFG.d_v() / 8 / kColumnWarps;
    static constexpr bool kExchanges = kColumnWarps > 1;
    // Warps of dQ's product: of rows of queries, and of every so many 16 columns.
    static constexpr int kQueryWarps = query_warps_of(CFG.n_warps, CFG.d_head);
    static constexpr int kDWarps = CFG.n_warps / kQueryWarps;
    // Queries may be of any number, keys are whole blocks unless `ragged`.
    static constexpr bool kPartialRows = !kOfKeys || TRAITS.ragged;
    static constexpr bool kPartialColumns = kOfKeys || TRAITS.ragged;
    using Scores = float[kTilesM][kTilesS][4];

    struct Place {
        int head;  // of the group
        int block;
    };

    const BackwardParams& p;
    const unsigned smem;
    const WorkTile<TRAITS.packed> tile;
    const int lane, row_warp, column_warp, warp;
    const float scale_log2;
    int first_row;
    float gradient[kTilesM][kTilesD][4];                  // dK or dQ
    float gradient_v[kOfKeys ? kTilesM : 1][kTilesV][4];  // dV
    float lse2[kTilesM][2], delta[kTilesM][2];            // of rows of queries

    __device__ __forceinline__ Pass(const BackwardParams& p, unsigned smem)
        : p(p),
          smem(smem),
          tile((kOfKeys ? Order::of_keys(p, CFG.B_c) : Order::of_queries(p, CFG.B_c))
                   .decode(blockIdx.x)),
          lane(threadIdx.x % 32),
          // Broadcast, so that the compiler knows it to be the same in all lanes.
          row_warp(__shfl_sync(kAllLanes, threadIdx.x / 32, 0) / kColumnWarps),
          column_warp(__shfl_sync(kAllLanes, threadIdx.x / 32, 0) % kColumnWarps),
          warp(__shfl_sync(kAllLanes, threadIdx.x / 32, 0)),
          scale_log2(p.softmax_scale * kLog2E),
          first_row(tile.block * CFG.B_c) {}

    __device__ __forceinline__ void run() {
        const Range columns = columns_seen().template blocks<CFG.B_r>();
        const int steps = columns.count() * (kOfKeys ? p.heads_per_kv : 1);
        mma_sync::clear(gradient);
        mma_sync::clear(gradient_v);
        if (steps > 0) walk(columns, steps);
        __syncthreads();  // all are done with rows, in whose place gradients leave
        const int head = tile.head;
        if constexpr (kOfKeys) {
            stage<RowTile>(gradient, p.softmax_scale, smem + Layout::kRows);
            stage<RowTileV>(gradient_v, 1.f, smem + Layout::kRowsV);
            __syncthreads();
            store<RowTile>(p.dk, p.dk_strides, head, smem + Layout::kRows);
            store<RowTileV>(p.dv, p.dv_strides, head, smem + Layout::kRowsV);
        } else {
            stage<RowTile>(gradient, p.softmax_scale, smem + Layout::kRows);
            __syncthreads();
            store<RowTile>(p.dq, p.dq_strides, head, smem + Layout::kRows);
        }
    }

  private:
    __device__ __forceinline__ void walk(const Range& columns, int steps) {
        Place at{0, columns.first};
        load_rows();
        load_columns(at, 0);
        ptx::cp_async_commit_group();
        if constexpr (!kOfKeys) load_statistics();
#pragma unroll 1
        for (int i = 0; i < steps; ++i) {
            const int stage = CFG.stages == 2 ? i % 2 : 0;
            const bool is_last = i + 1 == steps;
            Place next{at.head, at.block + 1};
            if (next.block == columns.end) next = {at.head + 1, columns.first};
            ptx::cp_async_wait_group<0>();
            __syncthreads();
            if (CFG.stages == 2 && !is_last) load_columns(next, stage ^ 1);
            ptx::cp_async_commit_group();
            add_gradients(stage, at.block * CFG.B_r);
            if constexpr (kAddsDq || CFG.stages == 1) __syncthreads();
            if (CFG.stages == 1 && !is_last) load_columns(next, 0);
            ptx::cp_async_commit_group();
            if constexpr (kAddsDq) add_dq(at);
            at = next;
        }
    }

    // --- places --------------------------------------------------------------------------------

    __device__ __forceinline__ Range columns_seen() const {
        const Range rows{first_row, first_row + CFG.B_c};
        if constexpr (kOfKeys) return queries_of_keys<TRAITS>(p, tile.sequence, rows);
        return keys_of_queries<TRAITS>(p, tile.sequence, rows);
    }
    __device__ __forceinline__ int query_head(const Place& at) const {
        return kOfKeys ? tile.head * p.heads_per_kv + at.head : tile.head;
    }
    __device__ __forceinline__ int kv_head() const {
        return kOfKeys ? tile.head : tile.head / p.heads_per_kv;
    }
    __device__ __forceinline__ long long statistics(const Place& at) const {
        return static_cast<long long>(tile.batch * p.heads + query_head(at)) * p.padded_q;
    }
    __device__ __forceinline__ int first_warp_row() const { return row_warp * kWarpRows; }
    __device__ __forceinline__ int first_warp_column() const { return column_warp * kWarpColumns; }

    // --- global to shared memory ---------------------------------------------------------------

    // Of `length` rows of a head those from `first` on.
    template <class Tile, bool kPartial>
    __device__ __forceinline__ void load(unsigned to, const unsigned short* tensor,
                                         const TensorStrides& strides, int head, int first,
                                         int length) const {
        using Plan = mma_sync::CopyPlan<Tile, kThreads>;
        const unsigned short* const rows =
            tensor + tile.batch * strides.batch + head * strides.head + first * strides.seq;
        mma_sync::load_tile<Tile, kThreads, true, kPartial>(
            to, Plan::source(rows, strides.seq, threadIdx.x), strides.seq, length - first,
            threadIdx.x);
    }

    __device__ __forceinline__ void load_rows() const {
        const unsigned to = smem + Layout::kRows, to_v = smem + Layout::kRowsV;
        const int head = tile.head;
        if constexpr (kOfKeys) {
            load<RowTile, kPartialRows>(to, p.k, p.k_strides, head, first_row, p.seq_len_kv);
            load<RowTileV, kPartialRows>(to_v, p.v, p.v_strides, head, first_row, p.seq_len_kv);
        } else {
            load<RowTile, kPartialRows>(to, p.q, p.q_strides, head, first_row, p.seq_len_q);
            load<RowTileV, kPartialRows>(to_v, p.d_o, p.do_strides, head, first_row, p.seq_len_q);
        }
    }

    __device__ __forceinline__ void load_columns(const Place& at, int stage) const {
        const unsigned to = smem + Layout::kColumns + stage * ColumnTile::kBytes;
        const unsigned to_v = smem + Layout::kColumnsV + stage * ColumnTileV::kBytes;
        const int first = at.block * CFG.B_r;
        constexpr bool kPartial = kPartialColumns;
        if constexpr (kOfKeys) {
            const int head = query_head(at);
            load<ColumnTile, kPartial>(to, p.q, p.q_strides, head, first, p.seq_len_q);
            load<ColumnTileV, kPartial>(to_v, p.d_o, p.do_strides, head, first, p.seq_len_q);
            if (threadIdx.x < CFG.B_r / 4) {
                const long long from = statistics(at) + first + 4 * threadIdx.x;
                const unsigned place = smem + 4 * CFG.B_r * stage + 16 * threadIdx.x;
                ptx::cp_async_cg_16(place + Layout::kLse, p.lse2 + from);
                ptx::cp_async_cg_16(place + Layout::kDelta, p.delta + from);
            }
        } else {
            const int head = kv_head();
            load<ColumnTile, kPartial>(to, p.k, p.k_strides, head, first, p.seq_len_kv);
            load<ColumnTileV, kPartial>(to_v, p.v, p.v_strides, head, first, p.seq_len_kv);
        }
    }

    // Of this lane's rows, to registers.
    __device__ __forceinline__ void load_statistics() {
        const long long of_head = statistics({});
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row = first_row + first_warp_row() + 16 * m + 8 * half + lane / 4;
                const bool is_there = row < p.seq_len_q;
                lse2[m][half] = is_there ? p.lse2[of_head + row] : infinity();
                delta[m][half] = is_there ? p.delta[of_head + row] : 0.f;
            }
        }
    }

    // --- a step --------------------------------------------------------------------------------

    __device__ __forceinline__ void add_gradients(int stage, int first_column) {
        const unsigned columns = smem + Layout::kColumns + stage * ColumnTile::kBytes;
        const unsigned columns_v = smem + Layout::kColumnsV + stage * ColumnTileV::kBytes;
        const bool masked = is_masked(first_column);
        Scores s, dp;
        multiply_scores<RowTile, ColumnTile>(s, smem + Layout::kRows, columns);
        weigh(s, stage);
        if (masked) hide(s, first_column);
        if constexpr (kExchanges && kOfKeys) share(s, Layout::kP);
        if constexpr (kOfKeys) multiply_own<ColumnTileV>(gradient_v, s, columns_v);
        multiply_scores<RowTileV, ColumnTileV>(dp, smem + Layout::kRowsV, columns_v);
        make_ds(dp, s, stage);
        if (masked) hide(dp, first_column);
        if constexpr (kExchanges || kAddsDq) share(dp, Layout::kDs);
        multiply_own<ColumnTile>(gradient, dp, columns);
        if constexpr (kExchanges) {
            ptx::bar_sync(1 + row_warp, 32 * kColumnWarps);
            if constexpr (kOfKeys) multiply_others<ColumnTileV>(gradient_v, Layout::kP, columns_v);
            multiply_others<ColumnTile>(gradient, Layout::kDs, columns);
        }
    }

    // S or dP of a warp.
    template <class Tile, class Columns>
    __device__ __forceinline__ void multiply_scores(Scores& scores, unsigned rows,
                                                    unsigned columns) const {
        // Lanes as in sm80/fwd/warp_tile.cuh.
        const LaneAddress<Tile> a(rows, first_warp_row() + lane % 16, lane / 16);
        const LaneAddress<Columns> b(columns, first_warp_column() + lane / 16 * 8 + lane % 8,
                                     lane / 8 % 2);
        mma_sync::clear(scores);
        mma_sync::multiply<Elem, Tile::kColumns / 16>(
            scores,
            [&](unsigned (&fragment)[4], int t, int m) {
                ptx::ldmatrix_x4(fragment, a.at(t, 16 * m));
            },
            [&](unsigned (&fragment)[4], int t, int j) {
                ptx::ldmatrix_x4(fragment, b.at(t, 16 * j));
            });
    }

    // The sum of P or dS times columns: first of this warp's own part, in registers, then of those
    // that other warps have of its rows, in shared memory.
    template <class Columns, int kTiles>
    __device__ __forceinline__ void multiply_own(float (&sum)[kTilesM][kTiles][4], const Scores& x,
                                                 unsigned columns) const {
        multiply_part<Columns>(
            sum, columns, column_warp, [&x](unsigned (&fragment)[4], int t, int m) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const float (&pairs)[4] = x[m][2 * t + i / 2];
                    fragment[i] = Elem::pack(pairs[2 * (i % 2)], pairs[2 * (i % 2) + 1]);
                }
            });
    }
    template <class Columns, int kTiles>
    __device__ __forceinline__ void multiply_others(float (&sum)[kTilesM][kTiles][4],
                                                    unsigned scores, unsigned columns) const {
#pragma unroll
        for (int further = 1; further < kColumnWarps; ++further) {
            const int part = (column_warp + further) % kColumnWarps;
            const LaneAddress<ScoreTile> a(smem + scores, first_warp_row() + lane % 16,
                                           kWarpColumns / 8 * part + lane / 16);
            multiply_part<Columns>(sum, columns, part, [&a](unsigned (&fragment)[4], int t, int m) {
                ptx::ldmatrix_x4(fragment, a.at(t, 16 * m));
            });
        }
    }
    // Of the columns of a step that column warp `part` has.
    template <class Columns, int kTiles, class LoadA>
    __device__ __forceinline__ void multiply_part(float (&sum)[kTilesM][kTiles][4],
                                                  unsigned columns, int part,
                                                  const LoadA& load_a) const {
        const LaneAddress<Columns> b(columns, kWarpColumns * part + lane % 16,
                                     2 * column_warp + lane / 16);
        mma_sync::multiply<Elem, kWarpColumns / 16>(
            sum, load_a, [&](unsigned (&fragment)[4], int t, int j) {
                ptx::ldmatrix_x4_trans(fragment, b.at(j * kColumnWarps, 16 * t));
            });
    }

    // Rounded, to a tile in shared memory.
    __device__ __forceinline__ void share(const Scores& x, unsigned scores) const {
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
            for (int i = 0; i < 2 * kTilesS; ++i) {
                const int n = i / 2, half = i % 2;
                const int row = first_warp_row() + 16 * m + 8 * half + lane / 4;
                const int chunk = kWarpColumns / 8 * column_warp + n;
                const unsigned pair = Elem::pack(x[m][n][2 * half], x[m][n][2 * half + 1]);
                ptx::st_shared(smem + scores + ScoreTile::offset(row, chunk) + 4 * (lane % 4),
                               static_cast<int>(pair));
            }
        }
    }

    // P from S.
    __device__ __forceinline__ void weigh(Scores& s, int stage) const {
        each(s, Layout::kLse, stage, lse2, [this](float& x, float lse, int, int, int) {
            x = ptx::ex2_approx(x * scale_log2 - lse);
        });
    }

    // dS from dP.
    __device__ __forceinline__ void make_ds(Scores& dp, const Scores& p, int stage) const {
        each(dp, Layout::kDelta, stage, delta,
             [&p](float& x, float mean, int m, int n, int i) { x = p[m][n][i] * (x - mean); });
    }

    // With a number of its query: of columns in shared memory, of rows in `of_rows`.
    template <class Change>
    __device__ __forceinline__ void each(Scores& x, unsigned at, int stage,
                                         const float (&of_rows)[kTilesM][2],
                                         const Change& change) const {
        const unsigned place =
            smem + at + 4 * (CFG.B_r * stage + first_warp_column()) + 8 * (lane % 4);
#pragma unroll
        for (int n = 0; n < kTilesS; ++n) {
            float of_columns[2];
            if constexpr (kOfKeys) ptx::ld_shared_v2(of_columns, place + 32 * n);
#pragma unroll
            for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    change(x[m][n][i], kOfKeys ? of_columns[i % 2] : of_rows[m][i / 2], m, n, i);
                }
            }
        }
    }

    // Whether any pair of this warp does not count.
    __device__ __forceinline__ bool is_masked(int first_column) const {
        const int row = first_row + first_warp_row(), column = first_column + first_warp_column();
        const Range rows{row, row + kWarpRows}, columns{column, column + kWarpColumns};
        return needs_mask<TRAITS>(p, tile.sequence, kOfKeys ? columns : rows,
                                  kOfKeys ? rows : columns);
    }
    __device__ __forceinline__ void hide(Scores& x, int first_column) const {
        const int row = first_row + first_warp_row() + lane / 4;
        const int column = first_column + first_warp_column() + 2 * (lane % 4);
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) {
            Range seen[2];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int own = row + 16 * m + 8 * half;
                seen[half] = kOfKeys ? queries_of_key<TRAITS>(p, tile.sequence, own)
                                     : keys_of_query<TRAITS>(p, tile.sequence, own);
            }
            hide_outside(reinterpret_cast<float (&)[4 * kTilesS]>(x[m]), seen, column);
        }
    }

    // dQ of a step, to its sums.
    __device__ __forceinline__ void add_dq(const Place& at) const {
        constexpr int kTilesQ = CFG.B_r / 16 / kQueryWarps, kTilesN = CFG.d_head / 8 / kDWarps;
        constexpr int kAcross = CFG.d_head / 8;
        const int query_warp = warp / kDWarps, d_warp = warp % kDWarps;
        // dS lies as it was made, a row a key: read transposed.
        const LaneAddress<ScoreTile> a(smem + Layout::kDs, lane / 16 * 8 + lane % 8,
                                       2 * query_warp + lane / 8 % 2);
        const LaneAddress<RowTile> b(smem + Layout::kRows, lane % 16, 2 * d_warp + lane / 16);
        float dq[kTilesQ][kTilesN][4];
        mma_sync::clear(dq);
        mma_sync::multiply<Elem, CFG.B_c / 16>(
            dq,
            [&](unsigned (&fragment)[4], int t, int m) {
                ptx::ldmatrix_x4_trans(fragment, a.at(m * kQueryWarps, 16 * t));
            },
            [&](unsigned (&fragment)[4], int t, int j) {
                ptx::ldmatrix_x4_trans(fragment, b.at(j * kDWarps, 16 * t));
            });
        float* const sums = p.dq_sum + (statistics(at) + at.block * CFG.B_r) * CFG.d_head +
                            (query_warp * kAcross + 2 * d_warp) * kSumTile;
#pragma unroll
        for (int m = 0; m < kTilesQ; ++m) {
#pragma unroll
            for (int n = 0; n < kTilesN; ++n) {
                const int number = m * kQueryWarps * kAcross + n / 2 * 2 * kDWarps + n % 2;
                add_to_sums(sums + number * kSumTile, dq[m][n], lane);
            }
        }
    }

    // --- the way out ---------------------------------------------------------------------------

    template <class Tile, int kM, int kTiles>
    __device__ __forceinline__ void stage(const float (&sum)[kM][kTiles][4], float factor,
                                          unsigned to) const {
#pragma unroll
        for (int m = 0; m < kM; ++m) {
#pragma unroll
            for (int i = 0; i < 2 * kTiles; ++i) {
                const int n = i / 2, half = i % 2;
                const int row = first_warp_row() + 16 * m + 8 * half + lane / 4;
                const int chunk = 2 * (n / 2 * kColumnWarps + column_warp) + n % 2;
                const unsigned pair =
                    Elem::pack(sum[m][n][2 * half] * factor, sum[m][n][2 * half + 1] * factor);
                ptx::st_shared(to + Tile::offset(row, chunk) + 4 * (lane % 4),
                               static_cast<int>(pair));
            }
        }
    }

    template <class Tile>
    __device__ __forceinline__ void store(unsigned short* tensor, const TensorStrides& strides,
                                          int head, unsigned from) const {
        unsigned short* const rows =
            tensor + tile.batch * strides.batch + head * strides.head + first_row * strides.seq;
        const int valid = (kOfKeys ? p.seq_len_kv : p.seq_len_q) - first_row;
#pragma unroll
        for (int i = threadIdx.x; i < CFG.B_c * Tile::kChunks; i += kThreads) {
            const int row = i / Tile::kChunks, chunk = i % Tile::kChunks;
            if (kPartialRows && row >= valid) continue;
            *reinterpret_cast<uint4*>(rows + row * strides.seq + 8 * chunk) =
                *reinterpret_cast<const uint4*>(
                    __cvta_shared_to_generic(from + Tile::offset(row, chunk)));
        }
    }
};

}  // namespace fa_tune::sm80::backward
