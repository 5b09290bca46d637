// The plans of a CTA's shared memory.
//
// For dK and dV (kernel.cuh), `dynamic` and one pass for two of the parts:
//
//     | K | V | Q ring            | dO ring     | dS x 2      | dK, dV      | LSE, D of the rings,
//     |  B_c x d  q_stages x B_r x d  2 x B_r x d | B_r x B_c   | on their way|  tiles, barriers
//                                                 one pass      dynamic
//
// For dQ (dq_kernel.cuh), 128 queries a CTA:
//
//     | Q, dO     | K ring            | V ring            | dQ on its   | tiles, barriers
//     |  128 x d    3 x dq_keys x d     2 x dq_keys x d     way: dynamic
//
// Where d_head is above 128 the K ring has two stages, and dK and dV have another plan
// (wide_shared_memory.cuh).
//
// Everything is stored in panels of (rows x 64 elements), swizzled; see common/swizzle.cuh.  Where
// CTAs have one tile, its gradients leave from the places of K and V, or of Q.
#pragma once

#include "common/pipeline.cuh"
#include "common/swizzle.cuh"
#include "sm90/bwd/config.cuh"
#include "sm90/bwd/scheduler.cuh"

namespace fa_tune::sm90::backward {

// An array that may have no elements.
template <class T, int kCount>
struct Slots {
    T at[kCount];
};
template <class T>
struct Slots<T, 0> {};

template <Sm90BackwardConfig CFG>
struct SharedMemory {
    using KvTile = PanelTile<CFG.B_c, CFG.padded_d()>;
    using QTile = PanelTile<CFG.B_r, CFG.padded_d()>;
    using DsTile = PanelTile<CFG.B_r, CFG.B_c>;
    static constexpr int kDoStages = 2;
    struct Ds {
        unsigned char bytes[DsTile::kBytes];
    };
    // Where CTAs have several tiles, a gradient's place until it has left.  In one pass dS has room
    // for dK, and up to d_head 64 for both: a warpgroup's in its own panels.
    static constexpr int kGradients = !CFG.dynamic          ? 0
                                      : CFG.two_pass        ? 2
                                      : CFG.padded_d() > 64 ? 1
                                                            : 0;
    struct Gradient {
        unsigned char bytes[KvTile::kBytes];
    };

    unsigned char k[KvTile::kBytes];
    unsigned char v[KvTile::kBytes];
    unsigned char q[CFG.q_stages][QTile::kBytes];
    unsigned char d_o[kDoStages][QTile::kBytes];
    [[no_unique_address]] Slots<Ds, CFG.two_pass ? 0 : 2> ds;
    [[no_unique_address]] Slots<Gradient, kGradients> gradients;
    float lse2[CFG.q_stages][CFG.B_r];
    float delta[kDoStages][CFG.B_r];
    TileSlots tiles;
    Mbarrier k_full, k_empty, v_full, v_empty;
    Mbarrier q_full[CFG.q_stages], q_empty[CFG.q_stages];
    Mbarrier do_full[kDoStages], do_empty[kDoStages];
    Mbarrier ds_full[2], ds_empty[2];
};

// Where its members lie: 32-bit addresses, as the instructions want them.
template <Sm90BackwardConfig CFG>
struct SharedAddress {
    using Layout = SharedMemory<CFG>;

    unsigned base;

    __device__ __forceinline__ unsigned k() const { return base + offset_of(&Layout::k); }
    __device__ __forceinline__ unsigned v() const { return base + offset_of(&Layout::v); }
    __device__ __forceinline__ unsigned q(int stage) const {
        return base + offset_of(&Layout::q) + stage * Layout::QTile::kBytes;
    }
    __device__ __forceinline__ unsigned d_o(int stage) const {
        return base + offset_of(&Layout::d_o) + stage * Layout::QTile::kBytes;
    }
    __device__ __forceinline__ unsigned ds(int stage) const {
        return base + offset_of(&Layout::ds) + stage * Layout::DsTile::kBytes;
    }
    // A warpgroup's rows on their way out, laid out as K and V.
    __device__ __forceinline__ unsigned dk(int warpgroup) const {
        if constexpr (!CFG.dynamic) return k() + warpgroup * kOwnRows;
        if constexpr (CFG.two_pass) return gradient(0) + warpgroup * kOwnRows;
        return ds(0) + warpgroup * Layout::DsTile::kPanelBytes;
    }
    __device__ __forceinline__ unsigned dv(int warpgroup) const {
        if constexpr (!CFG.dynamic) return v() + warpgroup * kOwnRows;
        if constexpr (Layout::kGradients > 0) {
            return gradient(Layout::kGradients - 1) + warpgroup * kOwnRows;
        }
        return dk(warpgroup) + kOwnRows;
    }
    // Of a stage's queries.
    __device__ __forceinline__ unsigned lse2(int stage) const {
        return base + offset_of(&Layout::lse2) + 4 * CFG.B_r * stage;
    }
    __device__ __forceinline__ unsigned delta(int stage) const {
        return base + offset_of(&Layout::delta) + 4 * CFG.B_r * stage;
    }
    __device__ __forceinline__ TileSlotsAddress tiles() const {
        return {base + offset_of(&Layout::tiles)};
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
    __device__ __forceinline__ unsigned ds_full(int i) const { return at(&Layout::ds_full, i); }
    __device__ __forceinline__ unsigned ds_empty(int i) const { return at(&Layout::ds_empty, i); }

  private:
    static constexpr unsigned kOwnRows = 64 * Layout::KvTile::kRowBytes;
    __device__ __forceinline__ unsigned gradient(int i) const {
        return base + offset_of(&Layout::gradients) + i * Layout::KvTile::kBytes;
    }
    // Barrier i of those in `barriers`.
    template <class Barriers>
    __device__ __forceinline__ unsigned at(Barriers Layout::* barriers, int i) const {
        return base + offset_of(barriers) + static_cast<unsigned>(sizeof(Mbarrier)) * i;
    }
};

// The same of the kernel for dQ.  Each of two warpgroups has tiles of 64 queries of its own.
template <Sm90BackwardConfig CFG>
struct DqSharedMemory {
    using QTile = PanelTile<64, CFG.padded_d()>;
    using DoTile = PanelTile<64, CFG.padded_d_v()>;
    using KTile = PanelTile<CFG.dq_keys, CFG.padded_d()>;
    using VTile = PanelTile<CFG.dq_keys, CFG.padded_d_v()>;
    // K stays for dQ until the step after its scores: with two stages dQ comes before these.
    static constexpr int kKStages = CFG.padded_d() > 128 ? 2 : 3, kVStages = 2;
    struct Dq {
        unsigned char bytes[QTile::kBytes];
    };

    unsigned char q[2][QTile::kBytes];
    unsigned char d_o[2][DoTile::kBytes];
    unsigned char k[kKStages][KTile::kBytes];
    unsigned char v[kVStages][VTile::kBytes];
    [[no_unique_address]] Slots<Dq, CFG.dynamic ? 2 : 0> dq;
    TileSlots tiles;
    Mbarrier q_full[2], q_empty[2];
    Mbarrier do_full[2], do_empty[2];
    Mbarrier k_full[kKStages], k_empty[kKStages];
    Mbarrier v_full[kVStages], v_empty[kVStages];
};

template <Sm90BackwardConfig CFG>
struct DqSharedAddress {
    using Layout = DqSharedMemory<CFG>;

    unsigned base;

    __device__ __forceinline__ unsigned q(int warpgroup) const {
        return base + offset_of(&Layout::q) + warpgroup * Layout::QTile::kBytes;
    }
    __device__ __forceinline__ unsigned d_o(int warpgroup) const {
        return base + offset_of(&Layout::d_o) + warpgroup * Layout::DoTile::kBytes;
    }
    __device__ __forceinline__ unsigned k(int stage) const {
        return base + offset_of(&Layout::k) + stage * Layout::KTile::kBytes;
    }
    __device__ __forceinline__ unsigned v(int stage) const {
        return base + offset_of(&Layout::v) + stage * Layout::VTile::kBytes;
    }
    // On its way out.
    __device__ __forceinline__ unsigned dq(int warpgroup) const {
        if constexpr (!CFG.dynamic) return q(warpgroup);
        return base + offset_of(&Layout::dq) + warpgroup * Layout::QTile::kBytes;
    }
    __device__ __forceinline__ TileSlotsAddress tiles() const {
        return {base + offset_of(&Layout::tiles)};
    }
    __device__ __forceinline__ unsigned q_full(int i) const { return at(&Layout::q_full, i); }
    __device__ __forceinline__ unsigned q_empty(int i) const { return at(&Layout::q_empty, i); }
    __device__ __forceinline__ unsigned do_full(int i) const { return at(&Layout::do_full, i); }
    __device__ __forceinline__ unsigned do_empty(int i) const { return at(&Layout::do_empty, i); }
    __device__ __forceinline__ unsigned k_full(int i) const { return at(&Layout::k_full, i); }
    __device__ __forceinline__ unsigned k_empty(int i) const { return at(&Layout::k_empty, i); }
    __device__ __forceinline__ unsigned v_full(int i) const { return at(&Layout::v_full, i); }
    __device__ __forceinline__ unsigned v_empty(int i) const { return at(&Layout::v_empty, i); }

  private:
    template <class Barriers>
    __device__ __forceinline__ unsigned at(Barriers Layout::* barriers, int i) const {
        return base + offset_of(barriers) + static_cast<unsigned>(sizeof(Mbarrier)) * i;
    }
};

}  // namespace fa_tune::sm90::backward
