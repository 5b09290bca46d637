// One point of the sm90_bwd family's knobs, usable as a template argument.
// Generated from fa_tune/families/sm90_bwd/config.py by
// `python -m fa_tune.export.config_headers`; do not edit.
#pragma once

#include "common/dtype.cuh"

#ifdef __CUDACC__  // nvcc and NVRTC
#define FA_HOST_DEVICE __host__ __device__
#else
#define FA_HOST_DEVICE
#endif

namespace fa_tune {

struct Sm90BackwardConfig {
    // element type of Q, K, V and O
    DType dtype;
    // head dimension
    int d_head;
    // query rows of a step
    int B_r;
    // key rows of a CTA
    int B_c;
    // blocks of Q that shared memory holds
    int q_stages = 2;
    // warpgroups take turns in issuing their products
    bool turns = false;
    // dQ by a pass of its own, without sums in memory: the same bits always
    bool two_pass = false;
    // a CTA takes the next tile whenever it is done
    bool dynamic = false;
    // with two_pass, key rows of a step of dQ's pass
    int dq_keys = 96;
    // head dimension of V and O; 0: as d_head
    int d_head_v = 0;
    // dQ in the step that makes its dS, for which the warpgroups meet
    bool same_step = false;
    // CTAs of a cluster, which divide the queries of a block of keys
    int cluster = 1;
    // with two_pass, CTAs of a cluster that divide the keys of dQ's pass
    int dq_cluster = 1;

    // Head dimension of V and O.
    FA_HOST_DEVICE constexpr int d_v() const { return d_head_v != 0 ? d_head_v : d_head; }

    // Columns of tiles: copies add zeros behind d_head and d_v.
    FA_HOST_DEVICE constexpr int padded_d() const { return padded(d_head); }
    FA_HOST_DEVICE constexpr int padded_d_v() const { return padded(d_v()); }
    FA_HOST_DEVICE static constexpr int padded(int d) {
        if (d <= 64) return (d + 15) / 16 * 16;
        return d <= 96 ? 96 : d <= 128 ? 128 : d <= 192 ? 192 : 256;
    }

    constexpr bool operator==(const Sm90BackwardConfig& other) const = default;
    FA_HOST_DEVICE constexpr bool operator<(const Sm90BackwardConfig& other) const {
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
        if (q_stages != other.q_stages) {
            return q_stages < other.q_stages;
        }
        if (turns != other.turns) {
            return turns < other.turns;
        }
        if (two_pass != other.two_pass) {
            return two_pass < other.two_pass;
        }
        if (dynamic != other.dynamic) {
            return dynamic < other.dynamic;
        }
        if (dq_keys != other.dq_keys) {
            return dq_keys < other.dq_keys;
        }
        if (d_head_v != other.d_head_v) {
            return d_head_v < other.d_head_v;
        }
        if (same_step != other.same_step) {
            return same_step < other.same_step;
        }
        if (cluster != other.cluster) {
            return cluster < other.cluster;
        }
        return dq_cluster < other.dq_cluster;
    }
};

}  // namespace fa_tune

#undef FA_HOST_DEVICE
