// The main loop over the blocks of K and V when all threads of a CTA copy them, by cp.async or
// through registers.
//
//     shared memory   | Q (later O) | K ring: kv_stages x (B_c x d) | V ring: ... x (B_c x d_v) |
//
// A row of Q has room for the longer one of Q's and O's.
//
// Time line of one block j with one stage, eager:
//         wait K(j) | issue V(j) | S = Q K(j)^T | wait V(j) | issue K(j-1) | softmax | O += P V(j)
// without eager_load_blocks:
//         issue K(j) | wait | S = Q K(j)^T | issue V(j) | wait | softmax | O += P V(j)
// and with more stages, where one barrier per block is enough:
//         wait K(j), V(j) | issue K, V of the block kv_stages - 1 further on | S | softmax | O
#pragma once

#include "common/problem.cuh"
#include "common/swizzle.cuh"
#include "ptx/cp_async.cuh"
#include "sm80/fwd/block_range.cuh"
#include "sm80/fwd/epilogue.cuh"
#include "sm80/fwd/staged_products.cuh"
#include "sm80/fwd/warp_tile.cuh"

namespace fa_tune::sm80 {

template <FlashForwardKernelConfig CFG, WorkloadTraits TRAITS>
struct CpAsyncMainloop {
    static constexpr int kThreads = 32 * CFG.n_warps;
    static constexpr int kStages = CFG.kv_stages;
    static constexpr int kPitch = CFG.d_head > CFG.d_v() ? CFG.d_head : CFG.d_v();
    using QTile = SmemTile<CFG.B_r, CFG.d_head, CFG.swizzled, kPitch>;
    using OTile = SmemTile<CFG.B_r, CFG.d_v(), CFG.swizzled, kPitch>;
    using KTile = SmemTile<CFG.B_c, CFG.d_head, CFG.swizzled>;
    using VTile = SmemTile<CFG.B_c, CFG.d_v(), CFG.swizzled>;
    using QPlan = mma_sync::CopyPlan<QTile, kThreads>;
    using Tile = WarpTile<CFG, TRAITS, Tiles<QTile, OTile, KTile, VTile>>;
    using Products = StagedProducts<CFG, Tile>;
    static constexpr bool kMasked = Tile::kMasked;

    // Where one of K and V is copied next: the blocks follow one another from the last to the
    // first, and each goes to the next place of the ring.
    template <typename KVTile>
    struct Stream {
        const unsigned short* source;  // this thread's chunk
        long long stride;              // of the sequence
        unsigned ring;                 // shared address
        int block;
        int stage;
    };

    const ForwardParams& params;
    const int first_query;  // of this CTA, in its sequence
    [[no_unique_address]] const Sequence<TRAITS.packed> sequence;
    int first_block;  // with a window: the first block of its range
    const unsigned q_smem, k_smem, v_smem;
    Tile warp_tile;
    Stream<KTile> k;
    Stream<VTile> v;

    __device__ __forceinline__ CpAsyncMainloop(const ForwardParams& p, unsigned smem,
                                               int first_query,
                                               const Sequence<TRAITS.packed>& sequence)
        : params(p),
          first_query(first_query),
          sequence(sequence),
          q_smem(smem),
          k_smem(smem + QTile::kBytes),
          v_smem(smem + QTile::kBytes + kStages * KTile::kBytes),
          warp_tile(softmax_scale<TRAITS>(p), q_smem, k_smem, v_smem) {}

    template <typename KVTile>
    __device__ __forceinline__ Stream<KVTile> stream(const unsigned short* tensor,
                                                     const TensorStrides& strides, unsigned ring,
                                                     int block) const {
        using KVPlan = mma_sync::CopyPlan<KVTile, kThreads>;
        const int kv_head = blockIdx.y / params.heads_per_kv;
        const long long first_key = static_cast<long long>(block) * CFG.B_c;
        const unsigned short* rows =
            tensor + blockIdx.z * strides.batch + kv_head * strides.head + first_key * strides.seq;
        if constexpr (TRAITS.packed) rows += sequence.first_key * strides.seq;
        return {KVPlan::source(rows, strides.seq, threadIdx.x), strides.seq, ring, block, 0};
    }

    // Copy the stream's next block, if there is one, and step to the one after it.
    template <typename KVTile>
    __device__ __forceinline__ void load(Stream<KVTile>& stream) {
        if (stream.block >= (TRAITS.window ? first_block : 0)) {
            const unsigned target =
                stream.ring + (kStages > 1 ? stream.stage * KVTile::kBytes : 0u);
            mma_sync::load_tile<KVTile, kThreads, CFG.async_copy, TRAITS.ragged>(
                target, stream.source, stream.stride,
                sequence.keys(params) - stream.block * CFG.B_c, threadIdx.x);
            stream.source -= stream.stride * CFG.B_c;
        }
        --stream.block;
        stream.stage = next_stage(stream.stage);
    }

    __device__ __forceinline__ static int next_stage(int stage) {
        return stage + 1 == kStages ? 0 : stage + 1;
    }

    __device__ __forceinline__ void commit() {
        if constexpr (CFG.async_copy) ptx::cp_async_commit_group();
    }

    __device__ __forceinline__ void load_q() {
        const unsigned short* q = params.q + blockIdx.z * params.q_strides.batch +
                                  blockIdx.y * params.q_strides.head +
                                  first_query * params.q_strides.seq;
        if constexpr (TRAITS.packed) q += sequence.first_query * params.q_strides.seq;
        mma_sync::load_tile<QTile, kThreads, CFG.async_copy, TRAITS.ragged>(
            q_smem, QPlan::source(q, params.q_strides.seq, threadIdx.x), params.q_strides.seq,
            sequence.queries(params) - first_query, threadIdx.x);
        commit();
    }

    // All groups but the latest kPending have arrived, and every warp is past its reads of what
    // comes next.
    template <int kPending = 0>
    __device__ __forceinline__ void wait_for_copies() {
        if constexpr (CFG.async_copy) ptx::cp_async_wait_group<kPending>();
        __syncthreads();
    }

    // One block with one stage.
    __device__ __forceinline__ void multiply_qk_of_one_stage() {
        if constexpr (CFG.eager_load_blocks) {
            wait_for_copies();  // K(block), and Q at first
            load(v);
            commit();
        } else {
            __syncthreads();  // every warp is done with the previous block
            load(k);
            commit();
            wait_for_copies();
        }
        Products::multiply_qk(warp_tile, 0);
        if constexpr (!CFG.eager_load_blocks) {
            load(v);
            commit();
        }
        wait_for_copies();  // V(block)
        if constexpr (CFG.eager_load_blocks) {
            load(k);
            commit();
        }
    }

    // The same with several stages; K lies `k_offset` bytes into its ring.
    __device__ __forceinline__ void multiply_qk_of_ring(unsigned k_offset) {
        wait_for_copies<kStages - 2>();
        load(k);
        load(v);
        commit();
        Products::multiply_qk(warp_tile, k_offset);
    }

    __device__ __forceinline__ void mainloop(const BlockRange& range) {
        const int last = range.end - 1;
        if constexpr (TRAITS.window) first_block = range.begin;
        k = stream<KTile>(params.k, params.k_strides, k_smem, last);
        v = stream<VTile>(params.v, params.v_strides, v_smem, last);
        if constexpr (kStages > 1) {
#pragma unroll
            for (int i = 0; i + 1 < kStages; ++i) {
                load(k);
                load(v);
                commit();
            }
        } else if constexpr (CFG.eager_load_blocks) {
            load(k);
            commit();
        }
        if constexpr (Tile::kQStaysInRegisters) {
            constexpr int kLater = kStages > 1 ? kStages - 1 : (CFG.eager_load_blocks ? 1 : 0);
            wait_for_copies<kLater>();  // Q
            warp_tile.load_q_registers();
        }
        int stage = 0;
        // One loop for masked and whole blocks: two cost registers that the 32-row configs do
        // not have, and spilled.
#pragma unroll 1
        for (int block = last; block >= (TRAITS.window ? first_block : 0); --block) {
            unsigned v_offset = 0;
            if constexpr (kStages > 1) {
                v_offset = stage * VTile::kBytes;
                multiply_qk_of_ring(stage * KTile::kBytes);
                stage = next_stage(stage);
            } else {
                multiply_qk_of_one_stage();
            }
            if constexpr (TRAITS.changes_scores()) {
                warp_tile.change_scores(params, sequence, first_query, block * CFG.B_c,
                                        kMasked && range.masks<TRAITS>(block));
            }
            if (kMasked && (block >= range.unmasked || (TRAITS.window && block < range.whole))) {
                warp_tile.mask(params, sequence, first_query, block * CFG.B_c);
            }
            warp_tile.softmax.advance(warp_tile.s, warp_tile.o, block == last);
            warp_tile.exponentiate();
            Products::multiply_pv(warp_tile, v_offset);
        }
    }

    __device__ __forceinline__ void run() {
        const BlockRange range =
            BlockRange::of<CFG.B_r, CFG.B_c, TRAITS>(params, sequence, first_query);
        warp_tile.score_map =
            ScoreMap<TRAITS>::of(params, sequence.element(blockIdx.z), blockIdx.y);
        load_q();
        if (range.end > range.begin) mainloop(range);
        // Without a block nothing has waited for Q's copies, which would land on top of O.
        if constexpr (kMasked && CFG.async_copy) ptx::cp_async_wait_group<0>();
        if constexpr (kMasked) __syncthreads();
        Epilogue<TRAITS, Tile>::write(warp_tile, params, sequence, blockIdx.z, blockIdx.y,
                                      first_query);
    }
};

}  // namespace fa_tune::sm80
