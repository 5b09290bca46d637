// One point of the sm90 family's knobs, usable as a template argument.
// Generated from fa_tune/families/sm90/config.py by
// `python -m fa_tune.export.config_headers`; do not edit.
#pragma once

#include "common/dtype.cuh"

#ifdef __CUDACC__  // nvcc and NVRTC
#define FA_HOST_DEVICE __host__ __device__
#else
#define FA_HOST_DEVICE
#endif

namespace fa_tune {

enum class Rescale : int {
    EACH_BLOCK = 0,
    THRESHOLDED = 1,
    STALE_MAX = 2,
    EXACT_MAX = 3,
    WATCHED_MAX = 4,
};

enum class Scheduler : int { SINGLE = 0, STATIC = 1, DYNAMIC = 2 };

enum class Order : int { LINEAR = 0, LONGEST_FIRST = 1 };

struct Sm90Config {
    // element type of Q, K, V and O
    DType dtype;
    // head dimension
    int d_head;
    // consumer warpgroups, of 64 query rows each
    int mma_warpgroups;
    // key/value rows per block
    int B_c;
    // blocks of K, and of V, that shared memory holds
    int stages;
    // tiles of Q that shared memory holds
    int q_stages = 1;
    // warpgroups take turns in issuing their products
    bool pingpong = false;
    // softmax while the next scores and the last product are under way
    bool overlap = false;
    // a tile's last product together with the next tile's scores
    bool cross_tile_overlap = false;
    // when O is brought to a new maximum: after each block's product, only when the maximum has
    // grown by more than a factor of 2^8, when the sum of a block's exponentials shows that it may
    // have, without a maximum in other blocks, only when it has grown at all, or as stale_max but
    // in tiles after one where sums often showed it, when a maximum has
    Rescale rescale = Rescale::EACH_BLOCK;
    // a CTA takes one tile, every n-th tile, or the next one whenever it is done
    Scheduler scheduler = Scheduler::SINGLE;
    // tiles head by head, or with a causal mask longest first within groups of heads
    Order order = Order::LINEAR;
    // CTAs that a multiprocessor holds at a time
    int min_ctas_per_sm = 1;
    // ask for the next blocks' arrival when a stage is given back
    bool early_test_wait = false;
    // blocks with a causal mask go through the loop of those without, with stale_max, exact_max or
    // watched_max
    bool single_loop = false;
    // head dimension of V and O; 0: as d_head
    int d_head_v = 0;
    // with stale_max, exact_max or watched_max, exponentials of a thread's first row beside the
    // maximum of its second
    bool rows_in_turn = false;
    // with stale_max or watched_max, first maxima look at the warp's other rows, and maxima that
    // grow steadily are those of a sample
    bool adaptive_max = false;
    // CTAs of a cluster, which divide the keys of a tile
    int splits = 1;

    // Whether O leaves by a place of its own, because Q of the next tile comes before O is there.
    FA_HOST_DEVICE constexpr bool o_apart() const { return cross_tile_overlap && q_stages == 1; }
    // Head dimension of V and O.
    FA_HOST_DEVICE constexpr int d_v() const { return d_head_v != 0 ? d_head_v : d_head; }

    // Columns of tiles, whole k-steps: copies add zeros behind d_head and d_v.
    FA_HOST_DEVICE constexpr int padded_d() const { return (d_head + 15) / 16 * 16; }
    FA_HOST_DEVICE constexpr int padded_d_v() const { return (d_v() + 15) / 16 * 16; }

    // Query rows per CTA.
    FA_HOST_DEVICE constexpr int B_r() const { return 64 * mma_warpgroups; }

    constexpr bool operator==(const Sm90Config& other) const = default;
    FA_HOST_DEVICE constexpr bool operator<(const Sm90Config& other) const {
        if (dtype != other.dtype) {
            return dtype < other.dtype;
        }
        if (d_head != other.d_head) {
            return d_head < other.d_head;
        }
        if (mma_warpgroups != other.mma_warpgroups) {
            return mma_warpgroups < other.mma_warpgroups;
        }
        if (B_c != other.B_c) {
            return B_c < other.B_c;
        }
        if (stages != other.stages) {
            return stages < other.stages;
        }
        if (q_stages != other.q_stages) {
            return q_stages < other.q_stages;
        }
        if (pingpong != other.pingpong) {
            return pingpong < other.pingpong;
        }
        if (overlap != other.overlap) {
            return overlap < other.overlap;
        }
        if (cross_tile_overlap != other.cross_tile_overlap) {
            return cross_tile_overlap < other.cross_tile_overlap;
        }
        if (rescale != other.rescale) {
            return rescale < other.rescale;
        }
        if (scheduler != other.scheduler) {
            return scheduler < other.scheduler;
        }
        if (order != other.order) {
            return order < other.order;
        }
        if (min_ctas_per_sm != other.min_ctas_per_sm) {
            return min_ctas_per_sm < other.min_ctas_per_sm;
        }
        if (early_test_wait != other.early_test_wait) {
            return early_test_wait < other.early_test_wait;
        }
        if (single_loop != other.single_loop) {
            return single_loop < other.single_loop;
        }
        if (d_head_v != other.d_head_v) {
            return d_head_v < other.d_head_v;
        }
        if (rows_in_turn != other.rows_in_turn) {
            return rows_in_turn < other.rows_in_turn;
        }
        if (adaptive_max != other.adaptive_max) {
            return adaptive_max < other.adaptive_max;
        }
        return splits < other.splits;
    }
};

}  // namespace fa_tune

#undef FA_HOST_DEVICE
