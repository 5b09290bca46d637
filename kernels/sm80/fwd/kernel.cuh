// FlashAttention forward with mma.sync.  One CTA owns B_r query rows of one head of one batch
// element and walks that head's keys and values in blocks of B_c, from the last to the first
// (masked blocks, if any, are the last ones and so come first).
//
//     grid    (query blocks, heads, batch); of a packed batch (tiles, heads), of all sequences, the
//             longest first, and no fewer than there are
//     block   32 n_warps threads; warp w owns rows [w, w + 1) * B_r / n_warps
//
// What a warp does with a block is in warp_tile.cuh; how blocks come to shared memory, and who
// waits for whom, is in cp_async_mainloop.cuh and, with ping_pong, in ping_pong_mainloop.cuh.
#pragma once

#include "common/member_order.cuh"
#include "sm80/fwd/cp_async_mainloop.cuh"
#include "sm80/fwd/ping_pong_mainloop.cuh"

namespace fa_tune::sm80 {

// CTAs per multiprocessor that the compiler shall leave registers for: as many as fit if a
// thread needs its accumulators, its resident Q and 56 registers of everything else.  Without
// the bound ptxas spends a few registers too many and loses a CTA, or spills where it need not;
// one CTA more than this was slower wherever it was tried (H200, B_r 64 and 128).
template <FlashForwardKernelConfig CFG>
__host__ __device__ constexpr int min_ctas_per_sm() {
    const int rows = CFG.B_r / CFG.n_warps;
    const int resident_q = CFG.Q_mma_load_K_tiles == 0 ? rows * CFG.d_head / 64 : 0;
    // Longer rows of Q and K take registers for their addresses.
    const int mean = (CFG.d_head + CFG.d_v()) / 2, columns = mean > CFG.d_v() ? mean : CFG.d_v();
    const int registers = rows * (columns + CFG.B_c) / 32 + resident_q + 56;
    const int fit = 65536 / (registers * 32 * CFG.n_warps);
    return fit < 1 ? 1 : fit;
}

template <FlashForwardKernelConfig CFG, WorkloadTraits TRAITS>
__global__ void __launch_bounds__(32 * CFG.n_warps, min_ctas_per_sm<CFG>())
    flash_forward_kernel(const __grid_constant__ ForwardParams params) {
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    const unsigned smem = static_cast<unsigned>(__cvta_generic_to_shared(shared_memory));
    if constexpr (TRAITS.packed) {
        const PackedTile tile =
            own_tile<32 * CFG.n_warps, CFG.B_r, TRAITS.causal>(params.packed, smem);
        if (tile.m_block < 0) return;
        __syncthreads();  // Q comes where the order was
        CpAsyncMainloop<CFG, TRAITS> loop(params, smem, tile.m_block * CFG.B_r, tile.sequence);
        loop.run();
    } else {
        CpAsyncMainloop<CFG, TRAITS> loop(params, smem, blockIdx.x * CFG.B_r, {});
        loop.run();
    }
}

// The maps are of whole tensors, four-dimensional: (d_head or d_v, sequence, heads, batch).
template <FlashForwardKernelConfig CFG, WorkloadTraits TRAITS>
__global__ void __launch_bounds__(32 * CFG.n_warps, min_ctas_per_sm<CFG>())
    flash_forward_ping_pong_kernel(const __grid_constant__ ptx::TensorMap q,
                                   const __grid_constant__ ptx::TensorMap k,
                                   const __grid_constant__ ptx::TensorMap v,
                                   const __grid_constant__ ptx::TensorMap o,
                                   const __grid_constant__ ForwardParams params) {
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    PingPongMainloop<CFG, TRAITS> loop(
        params, q, k, v, o, static_cast<unsigned>(__cvta_generic_to_shared(shared_memory)));
    loop.run();
}

}  // namespace fa_tune::sm80
