// FlashAttention forward with mma.sync.  One CTA owns B_r query rows of one head of one batch
// element and walks that head's keys and values in blocks of B_c, from the last to the first
// (masked blocks, if any, are the last ones and so come first).
//
//     shared memory   | Q (later O): B_r x d | K: B_c x d | V: B_c x d |   16-bit elements
//     warp w owns rows [w, w + 1) * B_r / n_warps of S, P and O, all in registers:
//
//              keys n                          d_head
//            +---------+                     +---------+
//     rows   | S, P    |  = Q K^T     rows   | O       |  += P V
//            +---------+                     +---------+
//
// Time line of one block j, eager:   wait K(j) | issue V(j) | S = Q K(j)^T | wait V(j) |
//                                    issue K(j-1) | softmax | O += P V(j)
// and without eager_load_blocks:     issue K(j) | wait | S = Q K(j)^T | issue V(j) | wait |
//                                    softmax | O += P V(j)
#pragma once

#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "sm80/constraints.cuh"
#include "sm80/params.cuh"
#include "tile/copy.cuh"
#include "tile/element.cuh"
#include "tile/fragment_stream.cuh"
#include "tile/mask.cuh"
#include "tile/online_softmax.cuh"
#include "tile/swizzle.cuh"

template <FlashForwardKernelConfig CFG, WorkloadTraits TRAITS>
struct ForwardKernel : Constraints<CFG> {
    static constexpr int kThreads = 32 * CFG.n_warps;
    static constexpr int kRowsPerWarp = CFG.B_r / CFG.n_warps;
    static constexpr int kTilesM = kRowsPerWarp / 16;  // 16-row tiles of S, P and O
    static constexpr int kTilesS = CFG.B_c / 8;        // 8-column tiles of S
    static constexpr int kTilesO = CFG.d_head / 8;     // 8-column tiles of O
    static constexpr int kStepsQK = CFG.d_head / 16;   // k-tiles of S = Q K^T
    static constexpr int kStepsPV = CFG.B_c / 16;      // k-tiles of O += P V
    static constexpr bool kQStaysInRegisters = CFG.Q_mma_load_K_tiles == 0;
    static constexpr bool kMasked = TRAITS.causal || TRAITS.ragged;
    static constexpr bool kBuffer = CFG.mma_double_buffer_loads;

    using QTile = tile::SmemTile<CFG.B_r, CFG.d_head, CFG.swizzled>;
    using KVTile = tile::SmemTile<CFG.B_c, CFG.d_head, CFG.swizzled>;
    using QPlan = tile::CopyPlan<QTile, kThreads>;
    using KVPlan = tile::CopyPlan<KVTile, kThreads>;
    using Elem = tile::Element<CFG.dtype>;
    using QStream = tile::FragmentStream<kStepsQK, CFG.Q_mma_load_K_tiles, kTilesM, kBuffer>;
    using KStream = tile::FragmentStream<kStepsQK, CFG.K_mma_load_K_tiles, kTilesS / 2, kBuffer>;
    using VStream = tile::FragmentStream<kStepsPV, CFG.V_mma_load_K_tiles, kTilesO / 2, kBuffer>;
    using Softmax = tile::OnlineSoftmax<kTilesM, kTilesS, kTilesO, CFG.optimized_softmax, kMasked>;

    const ForwardParams& p;
    const int thread, lane, warp;
    const int first_query;  // of this CTA
    const unsigned q_smem, k_smem, v_smem;
    const unsigned short *k_source, *v_source;  // this thread's chunk of the next block to load
    const tile::LaneAddress<QTile> q_lane;
    const tile::LaneAddress<KVTile> k_lane, v_lane;

    float s[kTilesM][kTilesS][4];
    float o[kTilesM][kTilesO][4];
    QStream q_registers;  // used when Q stays in registers
    Softmax softmax;

    __device__ __forceinline__ ForwardKernel(const ForwardParams& params, unsigned smem)
        : p(params),
          thread(threadIdx.x),
          lane(threadIdx.x % 32),
          // Broadcast, so that the compiler knows it to be the same in all lanes.
          warp(__shfl_sync(0xffffffffu, threadIdx.x / 32, 0)),
          first_query(blockIdx.x * CFG.B_r),
          q_smem(smem),
          k_smem(smem + QTile::kBytes),
          v_smem(smem + QTile::kBytes + KVTile::kBytes),
          // ldmatrix lane roles, see ptx/ldmatrix.cuh and ptx/mma.cuh.  The two registers of a B
          // operand must be neighbours, so a fragment's four matrices are, in order,
          //   Q (A, 16 rows x 16 k):             (rows 0-7, 8-15) x (k 0-7), then x (k 8-15)
          //   K (B, 16 keys x 16 k):             (keys 0-7) x (k 0-7, 8-15), then (keys 8-15)
          //   V (B transposed, 16 keys x 16 columns): (keys 0-7, 8-15) x (columns 0-7), then 8-15
          q_lane(q_smem + warp * kRowsPerWarp * QTile::kRowBytes, lane % 16, lane / 16),
          k_lane(k_smem, lane / 16 * 8 + lane % 8, lane / 8 % 2),
          v_lane(v_smem, lane % 16, lane / 16),
          softmax(params.softmax_scale) {}

    // Blocks are loaded from `block` down to 0, one after another.
    __device__ __forceinline__ void start_loads_at(int block) {
        const int kv_head = blockIdx.y / p.heads_per_kv;
        const long long first_key = static_cast<long long>(block) * CFG.B_c;
        k_source = KVPlan::source(p.k + blockIdx.z * p.k_strides.batch +
                                      kv_head * p.k_strides.head + first_key * p.k_strides.seq,
                                  p.k_strides.seq, thread);
        v_source = KVPlan::source(p.v + blockIdx.z * p.v_strides.batch +
                                      kv_head * p.v_strides.head + first_key * p.v_strides.seq,
                                  p.v_strides.seq, thread);
    }

    __device__ __forceinline__ void load_k(int block) {
        load_kv(k_smem, k_source, p.k_strides.seq, block);
    }

    __device__ __forceinline__ void load_v(int block) {
        load_kv(v_smem, v_source, p.v_strides.seq, block);
    }

    __device__ __forceinline__ void load_kv(unsigned smem, const unsigned short*& source,
                                            long long stride, int block) {
        tile::load_tile<KVTile, kThreads, CFG.async_copy, TRAITS.ragged>(
            smem, source, stride, p.seq_len_kv - block * CFG.B_c, thread);
        source -= stride * CFG.B_c;
        if constexpr (CFG.async_copy) ptx::cp_async_commit_group();
    }

    __device__ __forceinline__ void load_q() {
        const unsigned short* q = p.q + blockIdx.z * p.q_strides.batch +
                                  blockIdx.y * p.q_strides.head + first_query * p.q_strides.seq;
        tile::load_tile<QTile, kThreads, CFG.async_copy, TRAITS.ragged>(
            q_smem, QPlan::source(q, p.q_strides.seq, thread), p.q_strides.seq,
            p.seq_len_q - first_query, thread);
        if constexpr (CFG.async_copy) ptx::cp_async_commit_group();
    }

    // Everything issued so far has arrived, and every warp is past its reads of what comes next.
    __device__ __forceinline__ void wait_for_copies() {
        if constexpr (CFG.async_copy) ptx::cp_async_wait_group<0>();
        __syncthreads();
    }

    __device__ __forceinline__ auto q_loader() const {
        return [this](unsigned (&fragment)[4], int t, int m) {
            ptx::ldmatrix_x4(fragment, q_lane.at(t, 16 * m));
        };
    }

    // S = Q K^T of the block in shared memory.
    __device__ __forceinline__ void multiply_qk() {
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
            for (int n = 0; n < kTilesS; ++n) {
#pragma unroll
                for (int i = 0; i < 4; ++i) s[m][n][i] = 0.f;
            }
        }
        QStream q_stream;
        KStream k_stream;
#pragma unroll
        for (int t = 0; t < kStepsQK; ++t) {
            if constexpr (!kQStaysInRegisters) q_stream.prepare(t, q_loader());
            k_stream.prepare(t, [this](unsigned (&fragment)[4], int step, int pair) {
                ptx::ldmatrix_x4(fragment, k_lane.at(step, 16 * pair));
            });
            const QStream& q = kQStaysInRegisters ? q_registers : q_stream;
#pragma unroll
            for (int pair = 0; pair < kTilesS / 2; ++pair) {
                const unsigned (&k)[4] = k_stream.fragment(t, pair);
#pragma unroll
                for (int m = 0; m < kTilesM; ++m) {
                    Elem::mma(s[m][2 * pair], q.fragment(t, m), k[0], k[1]);
                    Elem::mma(s[m][2 * pair + 1], q.fragment(t, m), k[2], k[3]);
                }
            }
        }
    }

    // O += P V of the block in shared memory; P is S, rounded to the element type.  The
    // accumulator layout of two neighbouring 8-column tiles is the A layout of one k-tile.
    __device__ __forceinline__ void multiply_pv() {
        unsigned probabilities[kTilesM][kStepsPV][4];
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
            for (int t = 0; t < kStepsPV; ++t) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const float (&pair)[4] = s[m][2 * t + i / 2];
                    probabilities[m][t][i] = Elem::pack(pair[i % 2 * 2], pair[i % 2 * 2 + 1]);
                }
            }
        }
        VStream v_stream;
#pragma unroll
        for (int t = 0; t < kStepsPV; ++t) {
            v_stream.prepare(t, [this](unsigned (&fragment)[4], int step, int pair) {
                ptx::ldmatrix_x4_trans(fragment, v_lane.at(pair, 16 * step));
            });
#pragma unroll
            for (int pair = 0; pair < kTilesO / 2; ++pair) {
                const unsigned (&v)[4] = v_stream.fragment(t, pair);
#pragma unroll
                for (int m = 0; m < kTilesM; ++m) {
                    Elem::mma(o[m][2 * pair], probabilities[m][t], v[0], v[1]);
                    Elem::mma(o[m][2 * pair + 1], probabilities[m][t], v[2], v[3]);
                }
            }
        }
    }

    // One block of keys and values; `kMask` when some of its scores may not count.
    template <bool kMask>
    __device__ __forceinline__ void process(int block, bool first) {
        if constexpr (CFG.eager_load_blocks) {
            wait_for_copies();  // K(block), and Q at first
            load_v(block);
        } else {
            __syncthreads();  // every warp is done with the previous block
            load_k(block);
            wait_for_copies();
        }
        multiply_qk();
        if constexpr (!CFG.eager_load_blocks) load_v(block);
        wait_for_copies();  // V(block)
        if constexpr (CFG.eager_load_blocks) {
            if (block > 0) load_k(block - 1);
        }
        if constexpr (kMask) {
            tile::mask_scores<TRAITS.causal>(s, first_query + warp * kRowsPerWarp, block * CFG.B_c,
                                             p.seq_len_kv, p.diagonal, lane);
        }
        softmax.block(s, o, first);
        multiply_pv();
    }

    // Q has arrived; K of the first block, if issued already, may still be under way.
    __device__ __forceinline__ void load_q_registers() {
        if constexpr (CFG.async_copy) ptx::cp_async_wait_group<CFG.eager_load_blocks ? 1 : 0>();
        __syncthreads();
#pragma unroll
        for (int t = 0; t < kStepsQK; ++t) q_registers.prepare(t, q_loader());
    }

    // Blocks [0, end) have a key that some row of this CTA sees; of these, blocks [0, unmasked)
    // are seen whole by every row.
    __device__ __forceinline__ void block_range(int& end, int& unmasked) const {
        int keys = p.seq_len_kv;
        int whole_keys = p.seq_len_kv;
        if constexpr (TRAITS.causal) {
            const int last_query = min(first_query + CFG.B_r, p.seq_len_q) - 1;
            keys = max(0, min(keys, last_query + p.diagonal + 1));
            whole_keys = max(0, min(whole_keys, first_query + p.diagonal + 1));
        }
        end = (keys + CFG.B_c - 1) / CFG.B_c;
        unmasked = whole_keys / CFG.B_c;
    }

    __device__ __forceinline__ void run() {
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
            for (int n = 0; n < kTilesO; ++n) {
#pragma unroll
                for (int i = 0; i < 4; ++i) o[m][n][i] = 0.f;
            }
        }
        int end, unmasked;
        block_range(end, unmasked);
        load_q();
        if (end > 0) {
            int block = end - 1;
            start_loads_at(block);
            if constexpr (CFG.eager_load_blocks) load_k(block);
            if constexpr (kQStaysInRegisters) load_q_registers();
            const int first = block;
            if constexpr (kMasked) {
#pragma unroll 1
                for (; block >= unmasked; --block) process<true>(block, block == first);
            }
#pragma unroll 1
            for (; block >= 0; --block) process<false>(block, block == first);
        }
        write_output();
    }

    // O through this warp's own rows of the Q tile, so that global stores are whole chunks.
    __device__ __forceinline__ void write_output() {
        float log_sum_exp[kTilesM][2];
        softmax.finish(o, log_sum_exp);
        // Without a block nothing has waited for Q's copies, which would land on top of O.
        if constexpr (kMasked && CFG.async_copy) ptx::cp_async_wait_group<0>();
        if constexpr (kMasked) __syncthreads();
        const int warp_row = warp * kRowsPerWarp;
#pragma unroll
        for (int m = 0; m < kTilesM; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row = warp_row + 16 * m + 8 * half + lane / 4;
#pragma unroll
                for (int n = 0; n < kTilesO; ++n) {
                    const unsigned target = q_smem + QTile::offset(row, n) + lane % 4 * 4;
                    *reinterpret_cast<unsigned*>(__cvta_shared_to_generic(target)) =
                        Elem::pack(o[m][n][2 * half], o[m][n][2 * half + 1]);
                }
                if constexpr (TRAITS.lse) {
                    const long long index =
                        (static_cast<long long>(blockIdx.z) * p.heads + blockIdx.y) * p.seq_len_q +
                        first_query + row;
                    if (lane % 4 == 0 && first_query + row < p.seq_len_q) {
                        p.lse[index] = log_sum_exp[m][half];
                    }
                }
            }
        }
        __syncwarp();
        unsigned short* out = p.o + blockIdx.z * p.o_strides.batch + blockIdx.y * p.o_strides.head +
                              first_query * p.o_strides.seq;
        tile::store_warp_rows<QTile, kRowsPerWarp, TRAITS.ragged>(
            out, p.o_strides.seq, q_smem, warp_row, p.seq_len_q - first_query, lane);
    }
};

// CTAs per multiprocessor that the compiler shall leave registers for: as many as fit if a
// thread needs its accumulators, its resident Q and 56 registers of everything else.  Without
// the bound ptxas spends a few registers too many and loses a CTA, or spills where it need not;
// one CTA more than this was slower wherever it was tried (H200, B_r 64 and 128).
template <FlashForwardKernelConfig CFG>
__host__ __device__ constexpr int min_ctas_per_sm() {
    const int rows = CFG.B_r / CFG.n_warps;
    const int resident_q = CFG.Q_mma_load_K_tiles == 0 ? rows * CFG.d_head / 64 : 0;
    const int registers = rows * (CFG.d_head + CFG.B_c) / 32 + resident_q + 56;
    const int fit = 65536 / (registers * 32 * CFG.n_warps);
    return fit < 1 ? 1 : fit;
}

// Grid: (query blocks, heads, batch); block: 32 n_warps; dynamic shared memory: Q, K and V tile.
template <FlashForwardKernelConfig CFG, WorkloadTraits TRAITS>
__global__ void __launch_bounds__(32 * CFG.n_warps, min_ctas_per_sm<CFG>())
    flash_forward_kernel(const __grid_constant__ ForwardParams params) {
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    ForwardKernel<CFG, TRAITS> kernel(
        params, static_cast<unsigned>(__cvta_generic_to_shared(shared_memory)));
    kernel.run();
}
