// One point of the sm80 family's knobs, usable as a template argument.
// Generated from fa_tune/families/sm80/config.py by
// `python -m fa_tune.export.config_headers`; do not edit.
#pragma once

#include "dtype.h"

#ifdef __CUDACC__  // nvcc and NVRTC
#define FA_HOST_DEVICE __host__ __device__
#else
#define FA_HOST_DEVICE
#endif

namespace fa_tune {

enum class ProductOrder : int {
    MEASURED = 0,
    FEW_AHEAD = 1,
    FAR_AHEAD = 2,
    SHORT_RUNS = 3,
    SHARED_MAXIMA = 4,
};

struct FlashForwardKernelConfig {
    // element type of Q, K, V and O
    DType dtype;
    // head dimension
    int d_head;
    // query rows per CTA
    int B_r;
    // key/value rows per block
    int B_c;
    // warps per CTA
    int n_warps;
    // global to shared by cp.async, not through registers
    bool async_copy;
    // issue the next K and V block early
    bool eager_load_blocks;
    // XOR-swizzled shared memory
    bool swizzled;
    // k-tiles of Q held in registers at once; 0 keeps all of Q there for the whole kernel
    int Q_mma_load_K_tiles;
    // k-tiles of K loaded at once; 0 loads the whole block
    int K_mma_load_K_tiles;
    // k-tiles of V loaded at once; 0 loads the whole block
    int V_mma_load_K_tiles;
    // load the next k-tiles while the current ones are multiplied
    bool mma_double_buffer_loads;
    // no rescale at the first block; scale folded into the exponent's FMA
    bool optimized_softmax;
    // K and V blocks in shared memory at once
    int kv_stages = 1;
    // O is rescaled only when a maximum grew by more than this power of two; 0 rescales at every
    // block
    int rescale_threshold = 0;
    // the next keys' exponentials between the products P V
    bool interleaved_softmax = false;
    // bulk tensor copies, and the warps of a scheduler multiply in turn; needs 9.0
    bool ping_pong = false;
    // with ping_pong, in which order a turn's loads and products stand; MEASURED is the one of the
    // others that was fastest on an H200 for the mask and for d_head and B_c
    ProductOrder product_order = ProductOrder::MEASURED;
    // head dimension of V and O; 0: as d_head
    int d_head_v = 0;

    // Head dimension of V and O.
    FA_HOST_DEVICE constexpr int d_v() const { return d_head_v != 0 ? d_head_v : d_head; }

    // Dynamic shared memory of one CTA in bytes: Q (later O), and kv_stages blocks of K and of V.
    // Rows are whole groups of 32 columns; with ping_pong of 64, O has rows of its own, and tags
    // and barriers follow.
    FA_HOST_DEVICE constexpr int smem_bytes(int elem_size = 2) const {
        const int kv_rows = kv_stages * B_c;
        const int panels = (d_head + 63) / 64 + (d_v() + 63) / 64;
        const int row = (d_head + 31) / 32 * 32, row_v = (d_v() + 31) / 32 * 32;
        return ping_pong
                   ? (B_r + kv_rows) * panels * 64 * elem_size + 1024
                   : (B_r * (row > row_v ? row : row_v) + kv_rows * (row + row_v)) * elem_size;
    }

    // CTAs that max_smem_bytes of shared memory per multiprocessor hold, each with the 1 KiB
    // that the system adds to it.  Registers and threads may allow fewer.
    FA_HOST_DEVICE constexpr int num_ctas_per_sm(int max_smem_bytes) const {
        return max_smem_bytes / (smem_bytes() + 1024);
    }

    constexpr bool operator==(const FlashForwardKernelConfig& other) const = default;
    FA_HOST_DEVICE constexpr bool operator<(const FlashForwardKernelConfig& other) const {
        if (dtype != other.dtype) {
            return dtype < other.dtype;
        }
        if (d_head != other.d_head) {
            return d_head < other.d_head;
        }
        if (B_r != other.B_r) {
            return B_r < other.B_r;
        }
        if (B_c != other.B_c) {
            return B_c < other.B_c;
        }
        if (n_warps != other.n_warps) {
            return n_warps < other.n_warps;
        }
        if (async_copy != other.async_copy) {
            return async_copy < other.async_copy;
        }
        if (eager_load_blocks != other.eager_load_blocks) {
            return eager_load_blocks < other.eager_load_blocks;
        }
        if (swizzled != other.swizzled) {
            return swizzled < other.swizzled;
        }
        if (Q_mma_load_K_tiles != other.Q_mma_load_K_tiles) {
            return Q_mma_load_K_tiles < other.Q_mma_load_K_tiles;
        }
        if (K_mma_load_K_tiles != other.K_mma_load_K_tiles) {
            return K_mma_load_K_tiles < other.K_mma_load_K_tiles;
        }
        if (V_mma_load_K_tiles != other.V_mma_load_K_tiles) {
            return V_mma_load_K_tiles < other.V_mma_load_K_tiles;
        }
        if (mma_double_buffer_loads != other.mma_double_buffer_loads) {
            return mma_double_buffer_loads < other.mma_double_buffer_loads;
        }
        if (optimized_softmax != other.optimized_softmax) {
            return optimized_softmax < other.optimized_softmax;
        }
        if (kv_stages != other.kv_stages) {
            return kv_stages < other.kv_stages;
        }
        if (rescale_threshold != other.rescale_threshold) {
            return rescale_threshold < other.rescale_threshold;
        }
        if (interleaved_softmax != other.interleaved_softmax) {
            return interleaved_softmax < other.interleaved_softmax;
        }
        if (ping_pong != other.ping_pong) {
            return ping_pong < other.ping_pong;
        }
        if (product_order != other.product_order) {
            return product_order < other.product_order;
        }
        return d_head_v < other.d_head_v;
    }
};

}  // namespace fa_tune

#undef FA_HOST_DEVICE
