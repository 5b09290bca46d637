#pragma once

namespace fa_tune::toy {

struct Tensor {
    void* address;
    long long batch, seq, head;
};

struct BackwardParams {
    Tensor q, k, v, d_o, dq, dk, dv;
    unsigned* counters;
    int seq_len_q, seq_len_kv;
    float scale;
    bool wide_sums;
};

}  // namespace fa_tune::toy
