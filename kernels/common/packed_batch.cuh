// Packed batches: sequences of any lengths one after another, without padding.
//
//     cu_seqlens    0         5     5       12         sequence i is rows cu_seqlens[i] to
//                   |  seq 0  | (1) |  seq 2 |         cu_seqlens[i + 1], or as many from its
//                                                      first as are used
//
// What a launch passes of them, for the host as well.
#pragma once

namespace fa_tune {

// A sequence of a packed batch in the order of work.
struct alignas(16) PackedMember {
    int first_tile;  // how many tiles of one head come before its own
    int first_query, queries;
    int first_key, keys;
    int index;  // in the batch
    // Neighbours with as many tiles, whose tiles are handed out together, and which of them it is.
    int group, in_group;
};

// All of it 0 without the trait.  What a CTA begins with comes first, for it is a fresh
// multiprocessor that reads it: so much is in one line of the cache of parameters.
struct PackedBatch {
    int batch;
    int unused;
    const int* cu_seqlens_q;   // batch + 1
    const int* cu_seqlens_kv;  // batch + 1
    const int* used_q;         // how many rows of each sequence count, or null: all
    const int* used_kv;
    PackedMember* members;  // room for batch + 1: in the order of work, and an end; or null
};

}  // namespace fa_tune
