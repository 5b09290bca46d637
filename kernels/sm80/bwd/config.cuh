// One point of the sm80_bwd family's knobs, usable as a template argument.
// Generated from fa_tune/families/sm80_bwd/config.py by
// `python -m fa_tune.export.config_headers`; do not edit.
#pragma once

#include "common/dtype.cuh"

#ifdef __CUDACC__  // nvcc and NVRTC
#define FA_HOST_DEVICE __host__ __device__
#else
#define FA_HOST_DEVICE
#endif

namespace fa_tune {

struct Sm80BackwardConfig {
    // element type of Q, K, V and O
    DType dtype;
    // head dimension
    int d_head;
    // query rows of a step; with two_pass, key rows of a step of dQ's pass
    int B_r;
    // key rows of a CTA; with two_pass, query rows of a CTA of dQ's pass
    int B_c;
    // warps per CTA
    int n_warps;
    // warps that share rows of P and dS, by way of shared memory; with 1 they stay in registers
    int column_warps = 1;
    // blocks of Q and of dO that shared memory holds
    int stages = 1;
    // CTAs of a multiprocessor that registers are left for
    int ctas = 1;
    // dQ by a pass of its own, without sums in memory: the same bits always
    bool two_pass = false;
    // head dimension of V and O; 0: as d_head
    int d_head_v = 0;

    // Head dimension of V and O.
    FA_HOST_DEVICE constexpr int d_v() const { return d_head_v != 0 ? d_head_v : d_head; }

    constexpr bool operator==(const Sm80BackwardConfig& other) const = default;
    FA_HOST_DEVICE constexpr bool operator<(const Sm80BackwardConfig& other) const {
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
        if (column_warps != other.column_warps) {
            return column_warps < other.column_warps;
        }
        if (stages != other.stages) {
            return stages < other.stages;
        }
        if (ctas != other.ctas) {
            return ctas < other.ctas;
        }
        if (two_pass != other.two_pass) {
            return two_pass < other.two_pass;
        }
        return d_head_v < other.d_head_v;
    }
};

}  // namespace fa_tune

#undef FA_HOST_DEVICE
