// What a launch passes to the kernels.
#pragma once

#include "common/score_params.cuh"

namespace fa_tune::decode {

// Strides are in elements; the last dimension (d_head) is contiguous.
// q: [batch, seq_len_q, heads, d_head]; k: [batch, seq_len_kv, heads / heads_per_kv, d_head]
// o and v the same with d_v for d_head
// With KVType::E4M3 an element of K and of V is two bytes here, too: two numbers.
// lse: [batch, heads, seq_len_q], contiguous, fp32; read only with WorkloadTraits::lse.
struct TensorStrides {
    long long batch, seq, head;
};

// What is known on the device alone: how many keys each sequence has, and where they are.
struct KeyValueCache {
    // [batch]; a sequence has as many keys as this says, `added` more, and seq_len_kv at most.  A
    // causal mask is aligned bottom-right.  Null: every sequence has seq_len_kv.
    const int* lengths;
    // [batch, page_stride]: the page of each page_size keys.  k and v are [pages, page_size,
    // kv_heads, d_head].  Null: a sequence lies in one piece.
    const int* pages;
    int added;
    int page_size;  // a multiple of 16
    long long page_stride;
    // [batch, added, kv_heads, ...], with lengths only: the last `added` keys of every sequence,
    // which are read from here and written to their places in k and v.  Null: they are there.
    const unsigned short* new_k;
    const unsigned short* new_v;
    TensorStrides new_k_strides, new_v_strides;
};

// KVType::E4M3: what its numbers are to be multiplied with, of each head of K and V; null: 1.
struct KeyValueScales {
    const float* k;
    const float* v;
    int batch_stride, head_stride;
};

// A number that kernels divide by, since to divide by one that only they know takes 20
// instructions: n / number = (n * multiplier >> 31) >> shift, for n < 2^31, with the least shift of
// which 2^shift is no less than the number, and 2^(31 + shift) / number, rounded up, as multiplier.
struct Divisor {
    unsigned multiplier;
    int shift;
};

// The numbers are fields of DecodeParams and of KeyValueCache, but for `tiles`, those of a
// sequence, and `line`, their places in the line.  With cache.lengths there is no pitch, line and
// share, and without cache.pages no page_size.
struct Divisors {
    Divisor heads_per_kv, row_tiles, tiles, pitch, line, share, page_size;
};

struct DecodeParams {
    const unsigned short* q;
    const unsigned short* k;
    const unsigned short* v;
    unsigned short* o;
    float* lse;
    float* parts;        // see parts.cuh
    unsigned* counters;  // unless a kernel combines: of each CTA's last tile, parts that are done;
                         // with CFG.combine ALL see together.cuh
    KeyValueCache cache;
    KeyValueScales scales;
    ScoreParams score;
    TensorStrides q_strides, k_strides, v_strides, o_strides;
    int heads_per_kv;
    int kv_heads;
    int batch;
    int seq_len_q;
    int seq_len_kv;
    // causal: query i sees key j when j <= i + diagonal.  This, and score.first_diagonal, are less
    // keys - seq_len_q where the keys of a sequence are known on the device alone.
    int diagonal;
    int row_tiles;  // of the rows of one head of K and V
    int blocks;     // of keys, that every tile walks; not with cache.lengths
    int pitch;      // of tiles in the line, in blocks; at least as many
    int share;      // blocks of the line that a CTA takes; with cache.lengths the least
    int ctas;       // of the grid that takes shares
    int part_rows;  // of a part in memory: those of a tile, without padding
    float softmax_scale;
    Divisors by;
};

}  // namespace fa_tune::decode
