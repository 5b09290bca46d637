// What a launch passes to the kernel, and what a workload adds to a variant.
#pragma once

// Strides are in elements; the last dimension (d_head) is contiguous.
// q, o: [batch, seq_len_q, heads, d_head]; k, v: [batch, seq_len_kv, heads / heads_per_kv, d_head]
// lse: [batch, heads, seq_len_q], contiguous, fp32; read only with WorkloadTraits::lse.
struct TensorStrides {
    long long batch, seq, head;
};

struct ForwardParams {
    const unsigned short* q;
    const unsigned short* k;
    const unsigned short* v;
    unsigned short* o;
    float* lse;
    unsigned* counters;  // ping_pong: of the next tile, and of CTAs that found none left
    TensorStrides q_strides, k_strides, v_strides, o_strides;
    int heads;
    int heads_per_kv;
    int seq_len_q;
    int seq_len_kv;
    int diagonal;  // causal: query i sees key j when j <= i + diagonal
    int batch;
    int section_heads;  // ping_pong: see block_stream.cuh
    float softmax_scale;
};

// Compile-time facts of a workload.  What a workload does not use is not in its code.
struct WorkloadTraits {
    bool causal;  // mask keys after the diagonal
    bool ragged;  // a sequence length is no multiple of its block
    bool lse;     // write the log-sum-exp of every row
};
