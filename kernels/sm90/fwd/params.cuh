// What a launch passes to the kernel besides the tensor maps.
#pragma once

#include "common/packed_batch.cuh"
#include "common/score_params.cuh"

namespace fa_tune::sm90 {

// Work is cut into tiles of B_r query rows of one head; common/work_tile.cuh has their order.
// lse: [batch, heads, seq_len_q], contiguous, fp32; written only with WorkloadTraits::lse.
// Of a packed batch seq_len_q and seq_len_kv are the rows of all sequences, lse is
// [heads, seq_len_q], m_blocks and total_heads are not used, and each sequence has a diagonal of
// its own, so that its last query sees all its keys.
struct ForwardParams {
    float* lse;
    unsigned* counters;  // scheduler "dynamic": two, zero before and after the launch
    int heads;
    int heads_per_kv;
    int seq_len_q;
    int seq_len_kv;
    int diagonal;       // causal: query i sees key j when j <= i + diagonal
    int m_blocks;       // work tiles of one head
    int total_heads;    // heads times batch
    int l2_head_group;  // neighbouring heads whose tiles are handed out together
    float softmax_scale;
    ScoreParams score;
    PackedBatch packed;
};

}  // namespace fa_tune::sm90
