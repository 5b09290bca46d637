// One point of the decode family's knobs, usable as a template argument.
// Generated from fa_tune/families/decode/config.py by
// `python -m fa_tune.export.config_headers`; do not edit.
#pragma once

#include "common/dtype.cuh"

#ifdef __CUDACC__  // nvcc and NVRTC
#define FA_HOST_DEVICE __host__ __device__
#else
#define FA_HOST_DEVICE
#endif

namespace fa_tune {

enum class Combine : int { LAST = 0, KERNEL = 1, ALL = 2 };

enum class KVType : int { SAME = 0, E4M3 = 1 };

enum class TileOrder : int { SHARES = 0, WHOLE_ROUNDS = 1, CTA_PER_TILE = 2 };

struct DecodeConfig {
    // element type of Q and O, and of K and V but with `e4m3`
    DType dtype;
    // head dimension
    int d_head;
    // rows of a tile: queries of all heads that share one of K and V
    int B_r;
    // key/value rows per block
    int B_c;
    // warps per CTA
    int n_warps;
    // blocks of K, and of V, that shared memory holds
    int stages = 3;
    // warps that divide the rows of a tile; the others have other keys
    int row_warps = 1;
    // CTAs of a multiprocessor; all of them together share the keys of all tiles
    int ctas_per_sm = 1;
    // blocks of keys that a CTA takes at least; fewer CTAs if there are fewer
    int min_blocks = 1;
    // tiles begin where CTAs do, or at equal parts of them, so that heads read the same keys at a
    // time, where that leaves few CTAs without work; else all CTAs have equal shares
    bool aligned = false;
    // the parts of a tile are combined by the CTA that is done last, by a kernel of its own, or by
    // all of its CTAs together
    Combine combine = Combine::LAST;
    // head dimension of V and O; 0: as d_head
    int d_head_v = 0;
    // element type of K and V: that of Q, or e4m3 with scales; needs 8.9
    KVType kv_type = KVType::SAME;
    // a launch begins before the one in front of it is done, and waits for it; needs 9.0
    bool dependent = false;
    // CTAs of a cluster, which divide a tile's keys and combine their parts in shared memory; 1:
    // none; else needs 9.0
    int cluster = 1;
    // keys that a tile counts for beside its own, and that its parts have at least, where the
    // device alone knows lengths; without parts, if a tile has fewer
    int tile_keys = 0;
    // at the end of a tile what the columns of a row have in common is found first, by a lane for
    // each row, in place of by every thread for its columns
    bool by_rows = false;
    // the queries of a tile are loaded before any key, once for all warps, which take them from
    // shared memory, in place of by each warp for itself behind its first keys
    bool shared_queries = false;
    // copies of K and V take from memory the sectors of 32 bytes that they need, in place of whole
    // lines of 128, which the next head shares
    bool sectors = false;
    // CTAs share the keys of all tiles; or have whole tiles by rounds, so that those that run at a
    // time read heads that lie side by side; or there is a CTA for each tile
    TileOrder order = TileOrder::SHARES;

    // Head dimension of V and O.
    FA_HOST_DEVICE constexpr int d_v() const { return d_head_v != 0 ? d_head_v : d_head; }

    // Columns of tiles, whole k-steps: copies add zeros behind d_head and d_v.
    FA_HOST_DEVICE constexpr int padded_d() const { return (d_head + 15) / 16 * 16; }
    FA_HOST_DEVICE constexpr int padded_d_v() const { return (d_v() + 15) / 16 * 16; }

    constexpr bool operator==(const DecodeConfig& other) const = default;
    FA_HOST_DEVICE constexpr bool operator<(const DecodeConfig& other) const {
        if (dtype != other.dtype) {
            return dtype < other.dtype;
        }
        if (d_head != other.d_head) {
            return d_head < other.d_head;
        }
        if (B_r != other.B_r) {
            return B_r < other.B_r;
        }
        if (B_c != other.B_c) {
            return B_c < other.B_c;
        }
        if (n_warps != other.n_warps) {
            return n_warps < other.n_warps;
        }
        if (stages != other.stages) {
            return stages < other.stages;
        }
        if (row_warps != other.row_warps) {
            return row_warps < other.row_warps;
        }
        if (ctas_per_sm != other.ctas_per_sm) {
            return ctas_per_sm < other.ctas_per_sm;
        }
        if (min_blocks != other.min_blocks) {
            return min_blocks < other.min_blocks;
        }
        if (aligned != other.aligned) {
            return aligned < other.aligned;
        }
        if (combine != other.combine) {
            return combine < other.combine;
        }
        if (d_head_v != other.d_head_v) {
            return d_head_v < other.d_head_v;
        }
        if (kv_type != other.kv_type) {
            return kv_type < other.kv_type;
        }
        if (dependent != other.dependent) {
            return dependent < other.dependent;
        }
        if (cluster != other.cluster) {
            return cluster < other.cluster;
        }
        if (tile_keys != other.tile_keys) {
            return tile_keys < other.tile_keys;
        }
        if (by_rows != other.by_rows) {
            return by_rows < other.by_rows;
        }
        if (shared_queries != other.shared_queries) {
            return shared_queries < other.shared_queries;
        }
        if (sectors != other.sectors) {
            return sectors < other.sectors;
        }
        return order < other.order;
    }
};

}  // namespace fa_tune

#undef FA_HOST_DEVICE
