// FlashAttention forward for few queries after many keys, bound by the reading of K and V.
//
//     grid    (CTAs, 1, 1), see work.cuh; (tiles * CFG.cluster, 1, 1) with clusters
//     block   32 n_warps threads, see warp_group.cuh
//
// Parts of a tile are combined within its cluster, by the CTA that is done last, by all of its CTAs
// together, or by a kernel of their own:
//
//     grid    (tiles, rows of a part, 1)
//     block   combine_threads
#pragma once

#include "decode/combine.cuh"
#include "decode/warp_group.cuh"
#include "ptx/cluster.cuh"
#include "ptx/griddepcontrol.cuh"
#include "ptx/mbarrier.cuh"

namespace fa_tune::decode {

// What the groups of a CTA found of a row; returns the highest of their maxima.
template <DecodeConfig CFG>
__device__ __forceinline__ float read_group_sums(RowSum (&sums)[Layout<CFG>::kGroups],
                                                 unsigned smem, int row) {
    using L = Layout<CFG>;
    float highest = negative_infinity();
#pragma unroll
    for (int g = 0; g < L::kGroups; ++g) {
        const auto* pair =
            reinterpret_cast<const float*>(__cvta_shared_to_generic(smem + L::row_sum_at(g, row)));
        sums[g] = {pair[0], pair[1]};
        highest = fmaxf(highest, pair[0]);
    }
    return highest;
}

// Four columns of a row of a CTA's part of a tile, from the sums of its groups.
template <DecodeConfig CFG>
__device__ __forceinline__ Combined combine_groups(unsigned smem, const TileRows& rows, int row,
                                                   int quad) {
    using L = Layout<CFG>;
    RowSum sums[L::kGroups];
    Combined total(rows.softmax_scale * kLog2E);
    total.raise_max(read_group_sums<CFG>(sums, smem, row));
#pragma unroll
    for (int g = 0; g < L::kGroups; ++g) {
        const auto* from = reinterpret_cast<const float*>(
            __cvta_shared_to_generic(smem + L::sums_at(g, row, 4 * quad)));
        const float part[4] = {from[0], from[1], from[2], from[3]};
        total.add(sums[g], part);
    }
    return total;
}

// A CTA's part of the tile in memory, or the result if it has the whole tile.  First every warp
// finds what the columns of a row have in common, by a lane for each row.
template <DecodeConfig CFG, WorkloadTraits TRAITS>
__device__ __forceinline__ void store_by_rows(const DecodeParams& p, unsigned smem,
                                              const Tile& tile, const TileRows& rows) {
    using L = Layout<CFG>;
    constexpr int kQuads = CFG.d_v() / 4;
    const Parts<CFG.d_v()> memory(p);
    const int place = tile.place(blockIdx.x), lane = threadIdx.x % 32;
    const bool whole = tile.parts() == 1;
    ResultRows<CFG.B_r> results;
    OfRows<float, CFG.B_r> weights[L::kGroups];
#pragma unroll
    for (int set = 0; set < weights[0].kSets; ++set) {
        const int row = min(32 * set + lane, rows.count - 1);
        const bool writes = threadIdx.x < 32 && 32 * set + lane < rows.count;
        RowSum sums[L::kGroups];
        Combined total(rows.softmax_scale * kLog2E);
        total.raise_max(read_group_sums<CFG>(sums, smem, row));
#pragma unroll
        for (int g = 0; g < L::kGroups; ++g) weights[g].own[set] = total.add_sum(sums[g]);
        results.template set_own<TRAITS>(p, rows, set, row, total, whole && writes);
        if (!whole && writes) {
            ptx::st_global_cg_v2(memory.row_sum(place, row), total.max, total.sum);
        }
    }
    const int items = rows.count * kQuads;
#pragma unroll 4
    for (int first = threadIdx.x - lane; first < items; first += L::kThreads) {
        const bool writes = first + lane < items;
        const int item = min(first + lane, items - 1);
        const int row = item / kQuads, quad = item % kQuads;
        float total[4] = {};
#pragma unroll
        for (int g = 0; g < L::kGroups; ++g) {
            const float weight = weights[g].of(row);
            const auto from = *reinterpret_cast<const uint4*>(
                __cvta_shared_to_generic(smem + L::sums_at(g, row, 4 * quad)));
            const float part[4] = {__int_as_float(from.x), __int_as_float(from.y),
                                   __int_as_float(from.z), __int_as_float(from.w)};
#pragma unroll
            for (int i = 0; i < 4; ++i) total[i] = fmaf(weight, part[i], total[i]);
        }
        if (whole) {
            results.template write<mma_sync::Element<CFG.dtype>>(p, rows, row, quad, total, writes);
        } else if (writes) {
            ptx::st_global_cg_v4(memory.columns(place, row, quad), total);
        }
    }
}

// The sums of a CTA's groups make its part of the tile, in memory; or, if it has the whole tile,
// the result.
template <DecodeConfig CFG, WorkloadTraits TRAITS>
__device__ __forceinline__ void store_part(const DecodeParams& p, unsigned smem, const Tile& tile,
                                           const TileRows& rows) {
    using Elem = mma_sync::Element<CFG.dtype>;
    constexpr int kQuads = CFG.d_v() / 4;
    const Parts<CFG.d_v()> memory(p);
    const int place = tile.place(blockIdx.x);
    const auto put = [&](int row, int quad, const Combined& total) {
        if (tile.parts() == 1) {
            write_result<Elem, TRAITS>(p, rows, row, quad, total);
        } else {
            ptx::st_global_cg_v4(memory.columns(place, row, quad), total.o);
            if (quad == 0) ptx::st_global_cg_v2(memory.row_sum(place, row), total.max, total.sum);
        }
    };
    constexpr int kThreads = Layout<CFG>::kThreads, kItems = items_at_a_time<CFG>();
    for (int item = threadIdx.x; item < rows.count * kQuads; item += kItems * kThreads) {
        if constexpr (kItems == 1) {
            const int row = item / kQuads, quad = item % kQuads;
            put(row, quad, combine_groups<CFG>(smem, rows, row, quad));
        } else {
            // Written when all are read: no read goes past a write.
            Combined totals[kItems];
#pragma unroll
            for (int i = 0; i < kItems; ++i) {
                const int own = min(item + i * kThreads, rows.count * kQuads - 1);
                totals[i] = combine_groups<CFG>(smem, rows, own / kQuads, own % kQuads);
            }
#pragma unroll
            for (int i = 0; i < kItems; ++i) {
                const int own = item + i * kThreads;
                if (own >= rows.count * kQuads) break;
                put(own / kQuads, own % kQuads, totals[i]);
            }
        }
    }
}

// The next launch may begin, as far as it needs nothing of this one.
template <DecodeConfig CFG>
__device__ __forceinline__ void begin() {
    if constexpr (CFG.dependent) ptx::griddepcontrol_launch_dependents();
}

// All launches before this one are done; before the first read of memory.
template <DecodeConfig CFG>
__device__ __forceinline__ void await_earlier() {
    if constexpr (CFG.dependent) ptx::griddepcontrol_wait();
}

// The same, if who computes what has to be read.
template <DecodeConfig CFG>
__device__ __forceinline__ void await_shares(const DecodeParams& p) {
    if (CFG.kv_type == KVType::E4M3 || p.cache.lengths != nullptr) await_earlier<CFG>();
}

template <DecodeConfig CFG, WorkloadTraits TRAITS>
using SequencesOf = Sequences<CFG.B_c, TRAITS.window, (CFG.tile_keys + CFG.B_c - 1) / CFG.B_c>;

template <DecodeConfig CFG, WorkloadTraits TRAITS>
__device__ __forceinline__ TileRows rows_of(const SequencesOf<CFG, TRAITS>& sequences, int batch,
                                            int number) {
    TileRows rows(sequences, batch, number, CFG.B_r);
    if constexpr (CFG.kv_type == KVType::E4M3) {
        rows.template set_scales<TRAITS.softcap>(sequences.p.scales);
    }
    return rows;
}

// What a CTA has of a tile, in memory.
template <DecodeConfig CFG, WorkloadTraits TRAITS>
__device__ __forceinline__ void store(WarpGroup<CFG, TRAITS>& warps, const DecodeParams& p,
                                      unsigned smem, const Tile& tile, const TileRows& rows) {
    if constexpr (Layout<CFG>::kGroups == 1) {
        warps.store_alone(tile, rows);
    } else {
        warps.store_sums(rows.count);
        __syncthreads();
        if constexpr (CFG.by_rows) {
            store_by_rows<CFG, TRAITS>(p, smem, tile, rows);
        } else {
            store_part<CFG, TRAITS>(p, smem, tile, rows);
        }
    }
}

// Whole tiles: the one of each round that stands where the CTA does.
template <DecodeConfig CFG, WorkloadTraits TRAITS>
__device__ __forceinline__ void run_whole_tiles(const DecodeParams& p, unsigned smem) {
    const SequencesOf<CFG, TRAITS> sequences{p};
    WarpGroup<CFG, TRAITS> warps(p, smem);
    const int tiles = p.batch * sequences.tiles();
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        if (tile != blockIdx.x) __syncthreads();  // rings are filled anew
        const int batch = quotient(tile, p.by.tiles);
        const int number = tile - batch * sequences.tiles();
        const TileRows rows = rows_of<CFG, TRAITS>(sequences, batch, number);
        const auto source = warps.source_of(rows);
        await_earlier<CFG>();
        warps.run(rows, source, rows.first_block, sequences.pitch(batch));
        store<CFG, TRAITS>(warps, p, smem, Tile(), rows);
    }
}

template <DecodeConfig CFG, WorkloadTraits TRAITS>
__global__ void __launch_bounds__(32 * CFG.n_warps, CFG.ctas_per_sm)
    decode_kernel(const __grid_constant__ DecodeParams p) {
    extern __shared__ __align__(128) unsigned char shared_memory[];
    const auto smem = static_cast<unsigned>(__cvta_generic_to_shared(shared_memory));
    begin<CFG>();
    await_shares<CFG>(p);
    if constexpr (CFG.order != TileOrder::SHARES) {
        run_whole_tiles<CFG, TRAITS>(p, smem);
    } else {
        SequencesOf<CFG, TRAITS> sequences{p};
        const int all = sequences.all();
        const auto line = sequences.line(all, gridDim.x);
        int at = blockIdx.x * line.share;
        const int end = min(at + line.share, all);
        if (at >= end) return;
        WarpGroup<CFG, TRAITS> warps(p, smem);
        int start;  // of a tile
        int batch = sequences.find(at, start);
        int pitch = sequences.pitch(batch);
        int number = sequences.tile_at(at - start, pitch);  // of a tile in its sequence
        start += number * pitch;
        while (true) {
            const TileRows rows = rows_of<CFG, TRAITS>(sequences, batch, number);
            const Blocks own = line.between(at, end, start, pitch);
            const int blocks = p.cache.lengths == nullptr ? p.blocks : pitch;
            const auto source = warps.source_of(rows);
            await_earlier<CFG>();
            if (CFG.tile_keys == 0 || own.count > 0) {
                warps.run(rows, source, rows.first_block + own.first,
                          min(own.count, blocks - own.first));
                const Tile tile(sequences, start, pitch, line);
                store<CFG, TRAITS>(warps, p, smem, tile, rows);
                if (CFG.combine == Combine::LAST && tile.parts() > 1) {
                    combine_if_last<CFG, TRAITS>(p, smem, tile, rows);
                }
                if constexpr (CFG.combine == Combine::ALL) {
                    if (tile.parts() > 1) combine_together<CFG, TRAITS>(p, smem, tile, rows);
                }
            }
            at = CFG.tile_keys == 0 ? at + own.count : start + pitch;
            if (at >= end) return;
            start = at;
            if (++number == sequences.tiles()) {
                number = 0;
                pitch = sequences.pitch(++batch);
            }
            __syncthreads();  // before the rings are filled anew
        }
    }
}

// The parts that the CTAs of a cluster have of its tile make the result.  Every CTA makes as many
// of its columns, from what all write to its shared memory.
template <DecodeConfig CFG, WorkloadTraits TRAITS>
__device__ __forceinline__ void combine_cluster(const DecodeParams& p, unsigned smem,
                                                const TileRows& rows, int rank) {
    using L = Layout<CFG>;
    using Elem = mma_sync::Element<CFG.dtype>;
    constexpr int kQuads = CFG.d_v() / 4;
    const int items = rows.count * kQuads;
    const unsigned arrived = smem + L::kWord;
    if (threadIdx.x == 0) {
        // Of each CTA those of its own items.
        constexpr bool kEven = kQuads % CFG.cluster == 0;
        const int parts =
            (kEven ? items : items + CFG.cluster - 1 - rank) / CFG.cluster * CFG.cluster;
        ptx::mbarrier_arrive_expect_tx(arrived, parts * (L::kPartBytes + L::kSumBytes));
    }
#pragma unroll 1
    for (int item = threadIdx.x; item < items; item += L::kThreads) {
        const int row = item / kQuads, quad = item % kQuads;
        const Combined total = combine_groups<CFG>(smem, rows, row, quad);
        const unsigned cta = ptx::address_in_cta(smem, item % CFG.cluster);
        ptx::st_async_v4(cta + L::part_at(item / CFG.cluster, rank), total.o, cta + L::kWord);
        ptx::st_async_v2(cta + L::part_sum_at(item / CFG.cluster, rank), total.max, total.sum,
                         cta + L::kWord);
    }
    ptx::mbarrier_wait(arrived, 0);
#pragma unroll 1
    for (int own = threadIdx.x; own * CFG.cluster + rank < items; own += L::kThreads) {
        const int item = own * CFG.cluster + rank;
        const int row = item / kQuads, quad = item % kQuads;
        Combined total(rows.softmax_scale * kLog2E);
        float highest = negative_infinity();
#pragma unroll
        for (int i = 0; i < CFG.cluster; ++i) {
            const auto* pair = reinterpret_cast<const float*>(
                __cvta_shared_to_generic(smem + L::part_sum_at(own, i)));
            highest = fmaxf(highest, pair[0]);
        }
        total.raise_max(highest);
#pragma unroll
        for (int i = 0; i < CFG.cluster; ++i) {
            const auto* pair = reinterpret_cast<const float*>(
                __cvta_shared_to_generic(smem + L::part_sum_at(own, i)));
            const auto* from =
                reinterpret_cast<const float*>(__cvta_shared_to_generic(smem + L::part_at(own, i)));
            const float part[4] = {from[0], from[1], from[2], from[3]};
            total.add({pair[0], pair[1]}, part);
        }
        write_result<Elem, TRAITS>(p, rows, row, quad, total);
    }
}

// Compilers for older devices refuse the attribute even where nobody asks for the kernel.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
// A cluster of CTAs for each tile, whose blocks they divide.
template <DecodeConfig CFG, WorkloadTraits TRAITS>
__global__ void __launch_bounds__(32 * CFG.n_warps, CFG.ctas_per_sm)
    __cluster_dims__(CFG.cluster, 1, 1)
        decode_cluster_kernel(const __grid_constant__ DecodeParams p) {
    extern __shared__ __align__(128) unsigned char shared_memory[];
    const auto smem = static_cast<unsigned>(__cvta_generic_to_shared(shared_memory));
    begin<CFG>();
    if (threadIdx.x == 0) {
        ptx::mbarrier_init(smem + Layout<CFG>::kWord, 1);
        ptx::fence_mbarrier_init();
    }
    __syncwarp();
    ptx::cluster_arrive_relaxed();
    WarpGroup<CFG, TRAITS> warps(p, smem);
    await_shares<CFG>(p);
    SequencesOf<CFG, TRAITS> sequences{p};
    const int rank = ptx::cluster_rank();
    const int tile = blockIdx.x / CFG.cluster;
    const int batch = quotient(tile, p.by.tiles);
    const TileRows rows = rows_of<CFG, TRAITS>(sequences, batch, tile - batch * sequences.tiles());
    const int blocks = p.cache.lengths == nullptr ? p.blocks : sequences.pitch(batch);
    const int share = (blocks + CFG.cluster - 1) / CFG.cluster;
    const int first = min(blocks, rank * share);
    const auto source = warps.source_of(rows);
    await_earlier<CFG>();
    warps.run(rows, source, rows.first_block + first, min(share, blocks - first));
    warps.store_sums(rows.count);
    ptx::cluster_wait();  // all have begun, so that their memory and barriers are there
    __syncthreads();
    combine_cluster<CFG, TRAITS>(p, smem, rows, rank);
}
#endif

// Whole warps, of whose threads each has four columns.
template <DecodeConfig CFG>
__host__ __device__ constexpr int combine_threads() {
    return (CFG.d_v() / 4 + 31) / 32 * 32;
}

template <DecodeConfig CFG, WorkloadTraits TRAITS>
__global__ void __launch_bounds__(combine_threads<CFG>())
    decode_combine_kernel(const __grid_constant__ DecodeParams p) {
    begin<CFG>();
    await_earlier<CFG>();
    SequencesOf<CFG, TRAITS> sequences{p};
    const int batch = quotient(blockIdx.x, p.by.tiles);
    const int number = blockIdx.x - batch * sequences.tiles();
    const int all = sequences.all();
    const auto line = sequences.line(all, p.ctas);
    const int pitch = sequences.pitch(batch);
    const int start = sequences.blocks_before(batch) + number * pitch;
    const Tile tile(sequences, start, pitch, line);
    const TileRows rows = rows_of<CFG, TRAITS>(sequences, batch, number);
    const int row = blockIdx.y;
    if (tile.parts() == 1 || row >= rows.count) return;
    combine_rows<mma_sync::Element<CFG.dtype>, TRAITS, CFG.d_v(), combine_threads<CFG>(), 1>(
        p, Parts<CFG.d_v()>(p), tile, rows, row, row + 1, threadIdx.x);
}

}  // namespace fa_tune::decode
