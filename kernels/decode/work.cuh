// Who computes what.
//
// The queries of all heads that share one head of K and V are the rows of one matrix:
//
//     row = query * heads_per_kv + head within the group
//
// A tile is B_r of these rows; it walks the blocks of keys.  All blocks of all tiles stand in one
// line, of which every CTA takes an equal share, wherever tiles begin and end:
//
//     tiles      |    tile 0     |    tile 1     |    tile 2     |
//     CTAs       |   0    |   1    |   2    |   3    |   4   |
//
// So the CTAs have equal work, whatever the number of tiles and however different their lengths.
// Tiles may also take places in it in front of their blocks, for what they cost beside these.
// Tiles may also be drawn out in the line, so that each begins where a CTA does: then heads read
// the same keys at the same time, which lie side by side in memory.  A tile of several CTAs is in
// parts, one of each, that are combined.  A CTA has at most two: of the tile that was begun before
// it, and of the one that it leaves unfinished.
//
// In another order there is no line.  CTAs have whole tiles, by rounds, so that heads side by side
// are read at the same time; with CTA_PER_TILE there is one round.
//
//     CTAs       |   0    |   1    |   2    |   3    |   4    |
//     round 0    |   0    |   1    |   2    |   3    |   4    |
//     round 1    |   5    |   6    |   7    |   8    |   9    |
//     round 2    |   10   |   11   |   12   |
#pragma once

#include "common/constants.cuh"
#include "common/mask.cuh"
#include "decode/params.cuh"

namespace fa_tune::decode {

__device__ __forceinline__ int quotient(int n, const Divisor& by) {
    const auto doubled = 2u * static_cast<unsigned>(n);
    return static_cast<int>((1ull * doubled * by.multiplier >> 32) >> by.shift);
}

// Blocks of a tile that a CTA has.
struct Blocks {
    int first, count;
};

// The line, and how it is cut: each CTA has `share` of it.  A tile has `beside` places in front of
// its blocks, for what it takes beside them, and is not cut half as many blocks from its ends: such
// a cut is at the end.  Only where kBeside is not 0.
template <int kBeside>
struct Line {
    int share, beside;

    // Those between two places of the line, of a tile that takes `pitch` places from `start` on.
    __device__ __forceinline__ Blocks between(int from, int to, int start, int pitch) const {
        if constexpr (kBeside == 0) {
            const int first = from - start;
            return {first, min(pitch - first, to - from)};
        } else {
            const int first = cut(from - start, pitch);
            return {first, cut(to - start, pitch) - first};
        }
    }
    // Whoever has the first of these places has the tile's first block, and so with the last.
    __device__ __forceinline__ int first_place(int start, int pitch) const {
        return kBeside == 0 ? start : start + beside + at_start(pitch);
    }
    __device__ __forceinline__ int last_place(int start, int pitch) const {
        if constexpr (kBeside == 0) return start + pitch - 1;
        return start + max(beside + at_start(pitch), pitch - 1 - least());
    }

  private:
    // The block in front of which a tile is cut, by a cut at this place of it.
    __device__ __forceinline__ int cut(int place, int pitch) const {
        const int block = place - beside, blocks = pitch - beside;
        if (block <= at_start(pitch)) return 0;
        return block + least() >= blocks ? blocks : block;
    }
    // Cuts in front of a tile's first blocks, to this one, are at its start.
    __device__ __forceinline__ int at_start(int pitch) const {
        return min(least(), pitch - beside - 1);
    }
    // A part has more blocks.
    __device__ __forceinline__ int least() const { return (beside + 1) / 2; }
};

// The sequences of the batch: their keys, and where their tiles begin in the line.  Lengths on the
// device are read by whole warps, 32 at a time.
template <int kBlockKeys, bool kWindow, int kBeside>
struct Sequences {
    const DecodeParams& p;
    int beside = 0;  // places of a tile in front of its blocks

    __device__ __forceinline__ int tiles() const { return p.kv_heads * p.row_tiles; }  // of one
    __device__ __forceinline__ int keys(int batch) const {
        if (p.cache.lengths == nullptr) return p.seq_len_kv;
        return max(0, min(p.cache.lengths[batch] + p.cache.added, p.seq_len_kv));
    }
    // Masks are aligned bottom-right where only the device knows how many keys there are.
    __device__ __forceinline__ int alignment(int keys) const {
        return p.cache.lengths == nullptr ? 0 : keys - p.seq_len_q;
    }
    // The first that any query sees.
    __device__ __forceinline__ int first_block(int keys) const {
        if constexpr (!kWindow) return 0;
        return max(0, first_key_seen(0, p.score.first_diagonal) + alignment(keys)) / kBlockKeys;
    }
    // Of each tile in the line; a block where there are no keys, whose rows are to become 0.
    __device__ __forceinline__ int pitch(int batch) const {
        if (p.cache.lengths == nullptr) return p.pitch;
        const int there = keys(batch);
        return max(1, (there + kBlockKeys - 1) / kBlockKeys - first_block(there)) + beside;
    }
    // So many places behind the beginning of a sequence: the number of the tile there.
    __device__ __forceinline__ int tile_at(int places, int pitch) const {
        return p.cache.lengths == nullptr ? quotient(places, p.by.pitch) : places / pitch;
    }
    // The CTA that has a place of the line.
    __device__ __forceinline__ int cta_of(int place, int share) const {
        return p.cache.lengths == nullptr ? quotient(place, p.by.share) : place / share;
    }
    // Of all tiles of the sequences before this one.
    __device__ __forceinline__ int blocks_before(int batch) const {
        if (p.cache.lengths == nullptr) return batch * tiles() * p.pitch;
        int sum = 0;
        for (int b = threadIdx.x % 32; b < batch; b += 32) sum += pitch(b);
#pragma unroll
        for (int lanes = 1; lanes < 32; lanes *= 2) sum += __shfl_xor_sync(kAllLanes, sum, lanes);
        return sum * tiles();
    }
    // Of all tiles of the batch; first of all, since it tells whether there is `beside`.
    __device__ __forceinline__ int all() {
        if (kBeside == 0 || p.cache.lengths == nullptr) return blocks_before(p.batch);
        int sum = 0, longest = 0;
        for (int b = threadIdx.x % 32; b < p.batch; b += 32) {
            const int own = pitch(b);
            sum += own;
            longest = max(longest, own);
        }
#pragma unroll
        for (int lanes = 1; lanes < 32; lanes *= 2) {
            sum += __shfl_xor_sync(kAllLanes, sum, lanes);
            longest = max(longest, __shfl_xor_sync(kAllLanes, longest, lanes));
        }
        // Tiles as long as one another are better in equal parts, if these have some blocks, and so
        // are few tiles with few blocks for each CTA.
        const int blocks = sum * tiles(), every = p.batch * tiles();
        const bool alike = sum == longest * p.batch && blocks >= 3 * p.ctas;
        if (alike || (every < p.ctas && blocks < kBeside * p.ctas)) return blocks;
        beside = kBeside;
        return blocks + every * kBeside;
    }
    __device__ __forceinline__ Line<kBeside> line(int all, int ctas) const {
        const int equal =
            p.cache.lengths == nullptr ? p.share : max(p.share, (all + ctas - 1) / ctas);
        return {equal, beside};
    }

    // The sequence that has the block at `position`, which is one, and the blocks before it.
    __device__ __forceinline__ int find(int position, int& before) const {
        if (p.cache.lengths == nullptr) {
            const int batch = quotient(position, p.by.line);
            before = batch * tiles() * p.pitch;
            return batch;
        }
        const int lane = threadIdx.x % 32;
        before = 0;
        for (int first = 0;; first += 32) {
            const int own = first + lane < p.batch ? pitch(first + lane) * tiles() : 0;
            int end = own;  // the sum of this lane's and those below
#pragma unroll
            for (int lanes = 1; lanes < 32; lanes *= 2) {
                const int below = __shfl_sync(kAllLanes, end, max(0, lane - lanes));
                if (lane >= lanes) end += below;
            }
            const unsigned ended = __ballot_sync(kAllLanes, before + end <= position);
            const int count = __popc(ended);  // of these 32 sequences
            if (count < 32) {
                before += __shfl_sync(kAllLanes, end - own, count);
                return first + count;
            }
            before += __shfl_sync(kAllLanes, end, 31);
        }
    }
};

// A tile's places in the line, and the CTAs that have a part of it.
struct Tile {
    int first_cta, last_cta;

    // A whole one.
    __device__ __forceinline__ Tile() : first_cta(0), last_cta(0) {}

    template <class Sequences, int kBeside>
    __device__ __forceinline__ Tile(const Sequences& sequences, int start, int pitch,
                                    const Line<kBeside>& line)
        : first_cta(sequences.cta_of(line.first_place(start, pitch), line.share)),
          last_cta(sequences.cta_of(line.last_place(start, pitch), line.share)) {}

    __device__ __forceinline__ int parts() const { return last_cta - first_cta + 1; }

    // Where a CTA's part of it lies: each CTA has two places.
    __device__ __forceinline__ int place(int cta) const { return 2 * cta + (cta == first_cta); }
    __device__ __forceinline__ int place_of_part(int part) const { return place(first_cta + part); }
};

// The rows of a tile, in the tensors, and the keys that they may see.
struct TileRows {
    int batch, kv_head;
    int first;  // row of the matrix
    int count;  // rows that there are, at most B_r
    bool last;  // of the tiles of its head of K and V
    int keys;
    int new_from;  // keys from this one on are not in the cache yet
    int diagonal, first_diagonal;
    int first_block;  // of keys, that it walks
    float softmax_scale, score_scale, v_scale;
    bool negative = false;  // the scale of K: scores are those of -Q
    bool spoilt = false;    // it is NaN or infinite, and so are rows that see keys

    // `tile`: its number in its sequence.
    template <class Sequences>
    __device__ __forceinline__ TileRows(const Sequences& sequences, int batch, int tile,
                                        int tile_rows)
        : batch(batch) {
        const DecodeParams& p = sequences.p;
        kv_head = quotient(tile, p.by.row_tiles);
        first = (tile - kv_head * p.row_tiles) * tile_rows;
        count = min(tile_rows, p.seq_len_q * p.heads_per_kv - first);
        last = first + count == p.seq_len_q * p.heads_per_kv;
        keys = sequences.keys(batch);
        new_from = p.cache.new_k == nullptr ? keys : p.cache.lengths[batch];
        diagonal = p.diagonal + sequences.alignment(keys);
        first_diagonal = p.score.first_diagonal + sequences.alignment(keys);
        first_block = sequences.first_block(keys);
        softmax_scale = p.softmax_scale;
        score_scale = p.score.score_scale;
        v_scale = 1.f;
    }

    // K and V are less than they mean by these factors.  kLeast is normal, times log2(e) too.
    template <bool kSoftcap>
    __device__ __forceinline__ void set_scales(const KeyValueScales& scales) {
        const long long at = static_cast<long long>(batch) * scales.batch_stride +
                             static_cast<long long>(kv_head) * scales.head_stride;
        if (scales.k != nullptr) {
            float& scale = kSoftcap ? score_scale : softmax_scale;
            scale *= scales.k[at];
            negative = !kSoftcap && scale < 0.f;
            if (negative) scale = -scale;
            // Hidden scores are -inf, which 0 would make NaN: also of rows that see no key.  A head
            // of zeros may have the scale 0, and a sequence of none any.
            spoilt = !(fabsf(scale) < kInfinite);
            if (spoilt || fabsf(scale) < kLeast) scale = kLeast;
        }
        if (scales.v != nullptr) v_scale = scales.v[at];
    }

    // Of row `row` of the tile.
    __device__ __forceinline__ int query(const DecodeParams& p, int row) const {
        return quotient(first + row, p.by.heads_per_kv);
    }
    __device__ __forceinline__ int head(const DecodeParams& p, int row) const {
        return head_at(p, row, query(p, row));
    }
    // Its row sees the keys before this one.
    template <bool kCausal>
    __device__ __forceinline__ int seen(const DecodeParams& p, int row) const {
        return keys_seen<kCausal>(query(p, row), keys, diagonal);
    }
    // And none before this one.
    __device__ __forceinline__ int unseen(const DecodeParams& p, int row) const {
        return first_key_seen(query(p, row), first_diagonal);
    }
    // Of its first element in a tensor.
    __device__ __forceinline__ long long offset(const DecodeParams& p, const TensorStrides& strides,
                                                int row) const {
        return offset(p, strides, row, query(p, row));
    }
    // The same, if its query is known.
    __device__ __forceinline__ long long offset(const DecodeParams& p, const TensorStrides& strides,
                                                int row, int query) const {
        return batch * strides.batch + query * strides.seq + head_at(p, row, query) * strides.head;
    }

  private:
    static constexpr float kLeast = 2e-38f, kInfinite = 3e38f;

    __device__ __forceinline__ int head_at(const DecodeParams& p, int row, int query) const {
        return kv_head * p.heads_per_kv + first + row - query * p.heads_per_kv;
    }
};

}  // namespace fa_tune::decode
