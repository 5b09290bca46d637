// What a launch passes to the kernels.
#pragma once

namespace fa_tune::decode {

// Strides are in elements; the last dimension (d_head) is contiguous.
// q, o: [batch, seq_len_q, heads, d_head]; k, v: [batch, seq_len_kv, heads / heads_per_kv, d_head]
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
};

struct DecodeParams {
    const unsigned short* q;
    const unsigned short* k;
    const unsigned short* v;
    unsigned short* o;
    float* lse;
    float* parts;        // see parts.cuh
    unsigned* counters;  // with CFG.combine LAST: of each CTA's last tile, parts that are done
    KeyValueCache cache;
    TensorStrides q_strides, k_strides, v_strides, o_strides;
    int heads_per_kv;
    int kv_heads;
    int batch;
    int seq_len_q;
    int seq_len_kv;
    int diagonal;   // causal: query i sees key j when j <= i + diagonal
    int row_tiles;  // of the rows of one head of K and V
    int blocks;     // of keys, that every tile walks; not with cache.lengths
    int pitch;      // of tiles in the line, in blocks; at least as many
    int share;      // blocks that a CTA takes; with cache.lengths the least
    int ctas;       // of the grid that takes shares
    int part_rows;  // of a part in memory: those of a tile, without padding
    float softmax_scale;
};

}  // namespace fa_tune::decode
