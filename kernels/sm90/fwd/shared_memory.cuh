// The plan of a CTA's shared memory.
//
//     | Q (later O)                   | K ring           | V ring             | work tiles,
//     barriers
//     |
//       q_stages x (B_r x d)            stages x (B_c x d)  stages x (B_c x d_v)
//
// Each of Q, K and V is stored in panels of (rows x 64 elements), swizzled; see common/swizzle.cuh:
//
//       d = 128:   | columns 0-63: rows x 128 bytes | columns 64-127: rows x 128 bytes |
//
// A warpgroup's rows of Q are a tile of their own, of 64 rows: when it is done with them, its rows
// of O take their place and leave from there, without a word to the other warpgroups.  Where O has
// more panels than Q, the place is as large as O's.
//
// With o_apart there is a panel of O for each warpgroup between V and the work tiles.  O leaves
// from there panel by panel.
#pragma once

#include "common/pipeline.cuh"
#include "common/swizzle.cuh"
#include "sm90/fwd/config.cuh"

namespace fa_tune::sm90 {

// Which work the CTA does next, as the producer passes it on to the consumers.
struct WorkTile {
    int number;  // -1: there is none left
    int m_block;
    int head;  // of its batch element
    int batch;
};

// An array that may have no elements.
template <class T, int kCount>
struct Slots {
    T at[kCount];
};
template <class T>
struct Slots<T, 0> {};

template <Sm90Config CFG>
struct SharedMemory {
    static constexpr int kWorkTileSlots = CFG.scheduler == Scheduler::SINGLE ? 0 : 2;
    using QTile = PanelTile<64, CFG.padded_d()>;    // of one warpgroup
    using OTile = PanelTile<64, CFG.padded_d_v()>;  // in its place
    using KBlock = PanelTile<CFG.B_c, CFG.padded_d()>;
    using VBlock = PanelTile<CFG.B_c, CFG.padded_d_v()>;
    struct OPanel {
        unsigned char bytes[OTile::kPanelBytes];
    };
    static constexpr int kQBytes = QTile::kBytes > OTile::kBytes ? QTile::kBytes : OTile::kBytes;
    static constexpr int kRingBytes = CFG.stages * (KBlock::kBytes + VBlock::kBytes);
    // Of O in fp32, which a CTA of a cluster puts in the rings' place.
    static constexpr int kPartBytes = CFG.mma_warpgroups * OTile::kPanels * 64 * 256;
    // Types of their own: two empty members of one type would take a byte.
    struct FullBarrier : Mbarrier {};
    struct EmptyBarrier : Mbarrier {};
    struct Corrections {
        int of_warp[4];  // 16 bytes behind a multiple of 16
    };
    struct RowPart {
        float row_max, row_sum;  // by the keys of a CTA of a cluster
    };
    static constexpr bool kWatches = CFG.rescale == Rescale::WATCHED_MAX;

    unsigned char q[CFG.q_stages][CFG.mma_warpgroups][kQBytes];
    unsigned char k[CFG.stages][KBlock::kBytes];
    unsigned char v[CFG.stages][VBlock::kBytes];
    [[no_unique_address]] Slots<OPanel, CFG.o_apart() ? CFG.mma_warpgroups : 0> o_panels;
    [[no_unique_address]] Slots<WorkTile, kWorkTileSlots> work_tiles;
    [[no_unique_address]] Slots<Corrections, kWatches ? CFG.mma_warpgroups : 0> corrections;
    // clang-format off: it takes the brackets for comparisons
    [[no_unique_address]] Slots < RowPart, (CFG.splits > 1) ? CFG.B_r() : 0 > row_parts;
    // clang-format on
    Mbarrier q_full[CFG.q_stages][CFG.mma_warpgroups];
    Mbarrier q_empty[CFG.q_stages][CFG.mma_warpgroups];
    Mbarrier k_full[CFG.stages];
    Mbarrier k_empty[CFG.stages];
    Mbarrier v_full[CFG.stages];
    Mbarrier v_empty[CFG.stages];
    [[no_unique_address]] Slots<FullBarrier, kWorkTileSlots> work_tile_full;
    [[no_unique_address]] Slots<EmptyBarrier, kWorkTileSlots> work_tile_empty;
    unsigned long long scratch;  // never read
};

// Where its members lie: 32-bit addresses, as the instructions want them.  A slot of Q is a stage
// and a warpgroup.
template <Sm90Config CFG>
struct SharedAddress {
    using Layout = SharedMemory<CFG>;
    using KBlock = typename Layout::KBlock;
    using VBlock = typename Layout::VBlock;

    unsigned base;

    __device__ __forceinline__ unsigned q(int slot) const {
        return base + offset_of(&Layout::q) + slot * Layout::kQBytes;
    }
    __device__ __forceinline__ unsigned k(int stage) const {
        return base + offset_of(&Layout::k) + stage * KBlock::kBytes;
    }
    __device__ __forceinline__ unsigned v(int stage) const {
        return base + offset_of(&Layout::v) + stage * VBlock::kBytes;
    }
    // Of a warpgroup, with o_apart.
    __device__ __forceinline__ unsigned o_panel(int warpgroup) const {
        return base + offset_of(&Layout::o_panels) + warpgroup * Layout::OTile::kPanelBytes;
    }
    __device__ __forceinline__ unsigned q_full(int i) const { return at(&Layout::q_full, i); }
    __device__ __forceinline__ unsigned q_empty(int i) const { return at(&Layout::q_empty, i); }
    __device__ __forceinline__ unsigned k_full(int i) const { return at(&Layout::k_full, i); }
    __device__ __forceinline__ unsigned k_empty(int i) const { return at(&Layout::k_empty, i); }
    __device__ __forceinline__ unsigned v_full(int i) const { return at(&Layout::v_full, i); }
    __device__ __forceinline__ unsigned v_empty(int i) const { return at(&Layout::v_empty, i); }
    __device__ __forceinline__ unsigned work_tile(int i) const {
        return base + offset_of(&Layout::work_tiles) + kWorkTileBytes * i;
    }
    __device__ __forceinline__ unsigned work_tile_full(int i) const {
        return at(&Layout::work_tile_full, i);
    }
    __device__ __forceinline__ unsigned work_tile_empty(int i) const {
        return at(&Layout::work_tile_empty, i);
    }
    // Of a warpgroup, with watched_max.
    __device__ __forceinline__ unsigned corrections(int warpgroup) const {
        return base + offset_of(&Layout::corrections) + 16 * warpgroup;
    }
    // Of a row of the tile, with a cluster.
    __device__ __forceinline__ unsigned row_part(int row) const {
        return base + offset_of(&Layout::row_parts) +
               static_cast<unsigned>(sizeof(typename Layout::RowPart)) * row;
    }
    __device__ __forceinline__ unsigned scratch() const {
        return base + offset_of(&Layout::scratch);
    }

  private:
    static constexpr int kWorkTileBytes = sizeof(WorkTile);
    static constexpr int kBarrierBytes = sizeof(Mbarrier);

    // Barrier i of those in `barriers`.
    template <class Barriers>
    __device__ __forceinline__ unsigned at(Barriers Layout::* barriers, int i) const {
        return base + offset_of(barriers) + kBarrierBytes * i;
    }
};

}  // namespace fa_tune::sm90
