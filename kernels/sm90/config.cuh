// One point of the sm90 family's knobs, usable as a template argument.
// Generated from fa_tune/families/sm90.py by `python -m fa_tune.families.cpp`; do not edit.
#pragma once

#ifdef __CUDACC__  // nvcc and NVRTC
#define FA_HOST_DEVICE __host__ __device__
#else
#define FA_HOST_DEVICE
#endif

enum class DType : int { FP16 = 5, BF16 = 15 };

enum class Rescale : int { EACH_BLOCK = 0, BEFORE_PRODUCT = 1, LAZY = 2, TRUST = 3 };

enum class Scheduler : int { SINGLE = 0, STATIC = 1, DYNAMIC = 2 };

enum class Order : int { LINEAR = 0, LONGEST_FIRST = 1, PAIRED = 2 };

struct Sm90Config {
    // element type of Q, K, V and O
    DType dtype;
    // head dimension
    int d_head;
    // query rows per CTA
    int B_r;
    // key/value rows per block
    int B_c;
    // consumer warpgroups
    int consumers;
    // blocks of K, and of V, that shared memory holds
    int stages;
    // tiles of Q that shared memory holds
    int q_stages = 1;
    // warpgroups take turns in issuing their products
    bool pingpong = false;
    // softmax while the next scores and the last product are under way
    bool overlap = false;
    // keep the exponentials before the wait for the last product
    bool pin = false;
    // Q in registers, not in shared memory
    bool q_registers = false;
    // a tile's last product together with the next tile's scores
    bool carry = false;
    // when O is brought to a new maximum: after each block's product, before the next one's, only
    // when the maximum has grown by more than a factor of 2^8, or when the sum of a block's
    // exponentials shows that it may have, without a maximum in other blocks
    Rescale rescale = Rescale::EACH_BLOCK;
    // a CTA takes one tile, every n-th tile, or the next one whenever it is done
    Scheduler scheduler = Scheduler::SINGLE;
    // tiles head by head; with a causal mask longest first within sections of heads; or in pairs of
    // equal work
    Order order = Order::LINEAR;
    // blocks of V that shared memory holds; 0: as many as of K
    int v_stages = 0;
    // tiles of 64 query rows of a consumer warpgroup
    int m_tiles = 1;
    // CTAs that load K and V together, for neighbouring row blocks of a head
    int cluster = 1;
    // CTAs that a multiprocessor holds at a time
    int ctas = 1;
    // no softmax for the upper half of a first block that a causal mask hides from a warpgroup
    bool split_diagonal = false;
    // look for the next blocks' arrival when a stage is given back
    bool early_look = false;
    // a thread's second row has its maximum under the first's exponentials
    bool stagger = false;

    constexpr bool operator==(const Sm90Config& other) const = default;
    FA_HOST_DEVICE constexpr bool operator<(const Sm90Config& other) const {
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
        if (consumers != other.consumers) {
            return consumers < other.consumers;
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
        if (pin != other.pin) {
            return pin < other.pin;
        }
        if (q_registers != other.q_registers) {
            return q_registers < other.q_registers;
        }
        if (carry != other.carry) {
            return carry < other.carry;
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
        if (v_stages != other.v_stages) {
            return v_stages < other.v_stages;
        }
        if (m_tiles != other.m_tiles) {
            return m_tiles < other.m_tiles;
        }
        if (cluster != other.cluster) {
            return cluster < other.cluster;
        }
        if (ctas != other.ctas) {
            return ctas < other.ctas;
        }
        if (split_diagonal != other.split_diagonal) {
            return split_diagonal < other.split_diagonal;
        }
        if (early_look != other.early_look) {
            return early_look < other.early_look;
        }
        return stagger < other.stagger;
    }
};

#undef FA_HOST_DEVICE
