// What a launch passes to the kernel besides the tensor maps, and what a workload adds to a
// variant.
#pragma once

// Work is cut into tiles of B_r query rows of one head for each CTA of a cluster; see
// scheduler.cuh for their order.
// lse: [batch, heads, seq_len_q], contiguous, fp32; written only with WorkloadTraits::lse.
struct ForwardParams {
    float* lse;
    unsigned* counters;  // scheduler "dynamic": two, zero before and after the launch
    int heads;
    int heads_per_kv;
    int seq_len_q;
    int seq_len_kv;
    int diagonal;       // causal: query i sees key j when j <= i + diagonal
    int row_blocks;     // tiles of one head, each of a whole cluster's rows
    int heads_in_all;   // heads times batch
    int section_heads;  // neighbouring heads whose tiles are handed out together
    float softmax_scale;
};

// Compile-time facts of a workload.  What a workload does not use is not in its code.
struct WorkloadTraits {
    bool causal;  // mask keys after the diagonal
    bool ragged;  // a sequence length is no multiple of its block
    bool lse;     // write the log-sum-exp of every row
};
