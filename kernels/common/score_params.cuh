// What a launch passes of scores, whatever the family; what a trait does not ask for is not read.
#pragma once

namespace fa_tune {

// With softcap the bound is half of ForwardParams::softmax_scale (common/scores.cuh).
struct ScoreParams {
    const float* sink;          // sink: [heads]
    const float* alibi_slopes;  // alibi: [batch, heads], heads contiguous
    int alibi_batch_stride;     // in elements; 0: the same slopes for the whole batch
    int first_diagonal;         // window: query i sees key j when j >= i + first_diagonal
    int alibi_diagonal;         // alibi: the distance is |i + alibi_diagonal - j|
    float score_scale;          // of products before softcap (common/scores.cuh) or a hook
};

}  // namespace fa_tune
