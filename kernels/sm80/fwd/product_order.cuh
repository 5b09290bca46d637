// The order in which a turn's loads and products stand in the source.
//
// A turn is O += P V of one block and S = Q K^T of the next (ping_pong_mainloop.cuh).  A step is
// the two products of one fragment of V or K.  Fragments are loaded some steps ahead, and steps
// come in runs that share their A operand (mma_sync/run_stream.cuh):
//
//     v_lead, k_lead   2      load 0 1 | load 2, step 0 | load 3, step 1 | ...
//     run_length       2      A 0 0 1 1 0 0 1 1 ...   B 0 1 0 1 2 3 2 3 ...
//     turning                 A 0 0 1 1 1 1 0 0 ...   B 0 1 0 1 2 3 2 3 ...
//     q_step           1      before step 1 of a k-tile of Q K^T: Q's fragments of the next one
//
// The assembler keeps the order of loads and moves products among them, so every order is another
// schedule of the same work.  Its numbers have no effect that could be told one by one: the
// members of ProductOrder are whole orders that were fastest of some 250 for some kernel.
#pragma once

#include "common/problem.cuh"
#include "sm80/fwd/config.cuh"

namespace fa_tune::sm80 {

struct TurnOrder {
    int v_lead, k_lead;  // steps from a fragment's load to its first use
    int run_length;      // fragments that meet one A operand in a row, where they divide
    bool turning;        // every second group of runs in reverse
    int q_step;          // step of a k-tile, if it has so many, before which Q is loaded
    bool shared_maxima;  // first and last blocks take their maxima in the code of the usual one
};

__device__ constexpr TurnOrder turn_order(ProductOrder order) {
    switch (order) {
        case ProductOrder::FAR_AHEAD:
            return {12, 8, 4, false, 0, false};
        case ProductOrder::SHORT_RUNS:
            return {8, 6, 2, true, 4, false};
        case ProductOrder::SHARED_MAXIMA:
            return {6, 4, 4, false, 0, true};
        default:
            return {4, 4, 4, false, 0, false};
    }
}

// What a config that leaves it open gets: the fastest on an H200 (benchmarks/sm80_experiments.md).
// `more_scores`: S takes at least as many registers as O, so that softmax and products are alike
// long.
__device__ constexpr ProductOrder measured_order(bool causal, bool more_scores) {
    if (causal) return more_scores ? ProductOrder::FEW_AHEAD : ProductOrder::FAR_AHEAD;
    return more_scores ? ProductOrder::SHORT_RUNS : ProductOrder::SHARED_MAXIMA;
}

template <FlashForwardKernelConfig CFG, WorkloadTraits TRAITS>
__device__ constexpr TurnOrder turn_order_of() {
    if (CFG.product_order != ProductOrder::MEASURED) return turn_order(CFG.product_order);
    return turn_order(measured_order(TRAITS.causal, CFG.B_c >= CFG.d_v()));
}

}  // namespace fa_tune::sm80
