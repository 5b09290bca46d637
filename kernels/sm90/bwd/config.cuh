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
    // element type of all tensors
    DType dtype;
    // head dimension
    int d_head;
    // queries of a step
    int B_r;
    // keys of a CTA
    int B_c;
    // steps whose Q shared memory holds
    int q_stages = 2;
    // warpgroups take turns in issuing their products
    bool turns = false;
    // dQ by a kernel of its own, which adds in a fixed order
    bool two_pass = false;
    // a CTA takes the next tile whenever it is done
    bool dynamic = false;
    // two_pass: keys of a step of dQ
    int dq_keys = 96;
    // head dimension of V and O; 0: as d_head
    int d_head_v = 0;

    // Head dimension of V and O.
    FA_HOST_DEVICE constexpr int d_v() const { return d_head_v != 0 ? d_head_v : d_head; }

    constexpr bool operator==(const Sm90BackwardConfig& other) const = default;
};

}  // namespace fa_tune

#undef FA_HOST_DEVICE
