// What a launch passes to the kernel.
#pragma once

#include "common/packed_batch.cuh"
#include "common/score_params.cuh"

namespace fa_tune::sm80 {

// Strides are in elements; the last dimension is contiguous.
// q: [batch, seq_len_q, heads, d_head]; k: [batch, seq_len_kv, heads / heads_per_kv, d_head];
// v and o: like k and q, but with d_v columns
// lse: [batch, heads, seq_len_q], contiguous, fp32; read only with WorkloadTraits::lse.
// Of a packed batch seq_len_q and seq_len_kv are the rows of all sequences, lse is
// [heads, seq_len_q], and each sequence has a diagonal of its own, so that its last query sees all
// its keys.
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
    int l2_head_group;  // ping_pong: see work_stream.cuh
    float softmax_scale;
    ScoreParams score;
    PackedBatch packed;
};

}  // namespace fa_tune::sm80
