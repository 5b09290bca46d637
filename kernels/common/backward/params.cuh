// What a launch of the backward pass passes to its kernels besides the tensor maps.
#pragma once

#include "common/packed_batch.cuh"
#include "common/score_params.cuh"

namespace fa_tune {

// In elements; the last dimension is contiguous.
struct TensorStrides {
    long long batch, seq, head;
};

// o, d_o: [batch, seq_len_q, heads, d_v]; dq and q: as they, with d_head.  k, dk, v, dv: the same
// for keys and KV heads.  Rows are 16-byte aligned.
// padded_q is seq_len_q rounded up to 128: what is per query in the workspace has as many.
//
// Of a packed batch seq_len_q and seq_len_kv are the rows of all sequences, padded_q those of all
// that sequences may have (packed_tiles.cuh), batch is 1, lse [heads, seq_len_q], and diagonals are
// counted from the alignment of a sequence's last query with its last key.
struct BackwardParams {
    const unsigned short* o;
    const unsigned short* d_o;
    unsigned short* dq;
    TensorStrides o_strides, do_strides, dq_strides;
    // [batch, heads, seq_len_q], natural logarithms, a sink among them; -inf: the row sees no key.
    const float* lse;
    const float* grad_lse;  // trait lse: as lse
    // Workspace, [batch, heads, padded_q]: the same to base 2, but +inf where it is -inf and for
    // what pads; the sum of a row of O times dO less the gradient of its LSE, 0 for what pads.
    float* lse2;
    float* delta;
    // Workspace of one pass, [batch, heads, padded_q / B_r][B_r padded_d]: dQ before its factor,
    // each tile in the order of accumulators.
    float* dq_sum;
    unsigned* counters;  // `dynamic`: SchedulerCounters, zero before and after the launch
    int heads;
    int heads_per_kv;
    int seq_len_q;
    int seq_len_kv;
    int padded_q;
    int batch;
    int diagonal;       // causal: query i sees key j when j <= i + diagonal
    int l2_head_group;  // neighbouring KV heads whose tiles are handed out together
    float softmax_scale;
    ScoreParams score;
    PackedBatch packed;
    // Of kernels that take no tensor maps.
    const unsigned short *q, *k, *v;
    unsigned short *dk, *dv;
    TensorStrides q_strides, k_strides, v_strides, dk_strides, dv_strides;
};

}  // namespace fa_tune
