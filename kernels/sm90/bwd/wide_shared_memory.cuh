// The plan of a CTA's shared memory where dK and dV of wide heads are made (wide_kernel.cuh).
//
//     | K, then dK | V, then dV | Q ring        | dO ring       | P        | LSE, D, barriers
//       64 x d       64 x d_v     parts of Q      parts of dO     64 x 64 fp32
//
// A block of 64 queries is one part of Q and one of dO, or two with half of the columns each at
// d_head 256: so a ring may hold two and a half blocks.
#pragma once

#include "common/pipeline.cuh"
#include "common/swizzle.cuh"
#include "sm90/bwd/config.cuh"
#include "sm90/bwd/shared_memory.cuh"

namespace fa_tune::sm90::backward {

template <Sm90BackwardConfig CFG>
struct WideSharedMemory {
    static constexpr int kRows = 64;  // keys of a half of a tile, queries of a step
    static constexpr int kParts = CFG.padded_d() == 256 ? 2 : 1;
    // What there is room for at d_head 256 beside two blocks of dO is two and a half of Q.
    static constexpr int kDoSlots = kParts == 2 ? 4 : CFG.q_stages;
    static constexpr int kQSlots = kParts == 2 ? CFG.q_stages + 2 : CFG.q_stages;
    using KTile = PanelTile<kRows, CFG.padded_d()>;
    using VTile = PanelTile<kRows, CFG.padded_d_v()>;
    using QPart = PanelTile<kRows, CFG.padded_d() / kParts>;
    using DoPart = PanelTile<kRows, CFG.padded_d_v() / kParts>;

    unsigned char k[KTile::kBytes];
    unsigned char v[VTile::kBytes];
    unsigned char q[kQSlots][QPart::kBytes];
    unsigned char d_o[kDoSlots][DoPart::kBytes];
    float weights[kRows * kRows];
    // Of a step whose first part is in the slot.
    float lse2[kQSlots][kRows];
    float delta[kDoSlots][kRows];
    Mbarrier k_full, k_empty, v_full, v_empty;
    Mbarrier q_full[kQSlots], q_empty[kQSlots];
    Mbarrier do_full[kDoSlots], do_empty[kDoSlots];
};

// Where its members lie.
template <Sm90BackwardConfig CFG>
struct WideSharedAddress {
    using Layout = WideSharedMemory<CFG>;

    unsigned base;

    __device__ __forceinline__ unsigned k() const { return base + offset_of(&Layout::k); }
    __device__ __forceinline__ unsigned v() const { return base + offset_of(&Layout::v); }
    __device__ __forceinline__ unsigned q(int slot) const {
        return base + offset_of(&Layout::q) + slot * Layout::QPart::kBytes;
    }
    __device__ __forceinline__ unsigned d_o(int slot) const {
        return base + offset_of(&Layout::d_o) + slot * Layout::DoPart::kBytes;
    }
    __device__ __forceinline__ unsigned weights() const {
        return base + offset_of(&Layout::weights);
    }
    __device__ __forceinline__ unsigned lse2(int slot) const {
        return base + offset_of(&Layout::lse2) + 4 * Layout::kRows * slot;
    }
    __device__ __forceinline__ unsigned delta(int slot) const {
        return base + offset_of(&Layout::delta) + 4 * Layout::kRows * slot;
    }
    __device__ __forceinline__ unsigned k_full() const { return base + offset_of(&Layout::k_full); }
    __device__ __forceinline__ unsigned k_empty() const {
        return base + offset_of(&Layout::k_empty);
    }
    __device__ __forceinline__ unsigned v_full() const { return base + offset_of(&Layout::v_full); }
    __device__ __forceinline__ unsigned v_empty() const {
        return base + offset_of(&Layout::v_empty);
    }
    __device__ __forceinline__ unsigned q_full(int i) const { return at(&Layout::q_full, i); }
    __device__ __forceinline__ unsigned q_empty(int i) const { return at(&Layout::q_empty, i); }
    __device__ __forceinline__ unsigned do_full(int i) const { return at(&Layout::do_full, i); }
    __device__ __forceinline__ unsigned do_empty(int i) const { return at(&Layout::do_empty, i); }

  private:
    template <class Barriers>
    __device__ __forceinline__ unsigned at(Barriers Layout::* barriers, int i) const {
        return base + offset_of(barriers) + static_cast<unsigned>(sizeof(Mbarrier)) * i;
    }
};

}  // namespace fa_tune::sm90::backward
