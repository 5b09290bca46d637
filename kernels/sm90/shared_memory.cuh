// The plan of a CTA's shared memory.
//
//     | Q (later O)                   | K ring           | V ring             | tiles, barriers |
//       q_stages x (B_r x d)            stages x (B_c x d)  v_stages x (B_c x d)
//
// Each tile is stored in panels of (rows x 64 elements), swizzled; see ptx/wgmma_descriptor.cuh:
//
//       d = 128:   | columns 0-63: rows x 128 bytes | columns 64-127: rows x 128 bytes |
//
// A warpgroup's rows of Q are tiles of their own, of 64 rows each: when it is done with them, its
// rows of O take their place and leave from there, without a word to the other warpgroups.
#pragma once

#include "ptx/wgmma_descriptor.cuh"
#include "sm90/config.cuh"

template <Sm90Config CFG>
struct SharedMemory {
    static constexpr int kVStages = CFG.v_stages > 0 ? CFG.v_stages : CFG.stages;
    static constexpr int kTileSlots = CFG.scheduler == Scheduler::SINGLE ? 0 : 2;
    static constexpr int kTileSlotBytes = 16;
    static constexpr int kPanels = CFG.d_head / 64;
    static constexpr int kQPanelBytes = 64 * ptx::kSwizzleBytes;
    static constexpr int kKVPanelBytes = CFG.B_c * ptx::kSwizzleBytes;
    static constexpr int kQTileBytes = kPanels * kQPanelBytes;  // of 64 rows
    static constexpr int kQBytes = CFG.m_tiles * kQTileBytes;   // of one warpgroup
    static constexpr int kKVBytes = kPanels * kKVPanelBytes;    // of one K or V block

    static constexpr int kQ = 0;
    static constexpr int kK = kQ + CFG.q_stages * CFG.consumers * kQBytes;
    static constexpr int kV = kK + CFG.stages * kKVBytes;
    static constexpr int kTiles = kV + kVStages * kKVBytes;  // what the producer says of them
    static constexpr int kQFull = kTiles + kTileSlots * kTileSlotBytes;  // 8 bytes each from here
    static constexpr int kQEmpty = kQFull + 8 * CFG.q_stages * CFG.consumers;
    static constexpr int kKFull = kQEmpty + 8 * CFG.q_stages * CFG.consumers;
    static constexpr int kKEmpty = kKFull + 8 * CFG.stages;
    static constexpr int kVFull = kKEmpty + 8 * CFG.stages;
    static constexpr int kVEmpty = kVFull + 8 * kVStages;
    static constexpr int kTileFull = kVEmpty + 8 * kVStages;
    static constexpr int kTileEmpty = kTileFull + 8 * kTileSlots;
    static constexpr int kScratch = kTileEmpty + 8 * kTileSlots;  // never read
    static constexpr int kBytes = kScratch + 8;
};
