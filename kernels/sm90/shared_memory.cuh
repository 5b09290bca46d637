// The plan of a CTA's shared memory.
//
//     | Q (later O)                   | K ring           | V ring           | barriers |
//       q_stages x consumers x (64 x d)   stages x (B_c x d)   stages x (B_c x d)
//
// Each tile is stored in panels of (rows x 64 elements), swizzled; see ptx/wgmma_descriptor.cuh:
//
//       d = 128:   | columns 0-63: rows x 128 bytes | columns 64-127: rows x 128 bytes |
//
// A warpgroup's 64 rows of Q are a tile of their own: when it is done with them, its rows of O
// take their place and leave from there, without a word to the other warpgroups.
#pragma once

#include "ptx/wgmma_descriptor.cuh"
#include "sm90/config.cuh"

template <Sm90Config CFG>
struct SharedMemory {
    static constexpr int kTileSlots = CFG.scheduler == Scheduler::DYNAMIC ? 2 : 0;
    static constexpr int kPanels = CFG.d_head / 64;
    static constexpr int kQPanelBytes = 64 * ptx::kSwizzleBytes;
    static constexpr int kKVPanelBytes = CFG.B_c * ptx::kSwizzleBytes;
    static constexpr int kQBytes = kPanels * kQPanelBytes;    // of one warpgroup
    static constexpr int kKVBytes = kPanels * kKVPanelBytes;  // of one K or V block

    static constexpr int kQ = 0;
    static constexpr int kK = kQ + CFG.q_stages * CFG.consumers * kQBytes;
    static constexpr int kV = kK + CFG.stages * kKVBytes;
    static constexpr int kQFull = kV + CFG.stages * kKVBytes;  // 8 bytes per barrier from here on
    static constexpr int kQEmpty = kQFull + 8 * CFG.q_stages * CFG.consumers;
    static constexpr int kKFull = kQEmpty + 8 * CFG.q_stages * CFG.consumers;
    static constexpr int kKEmpty = kKFull + 8 * CFG.stages;
    static constexpr int kVFull = kKEmpty + 8 * CFG.stages;
    static constexpr int kVEmpty = kVFull + 8 * CFG.stages;
    static constexpr int kTileFull = kVEmpty + 8 * CFG.stages;
    static constexpr int kTileEmpty = kTileFull + 8 * kTileSlots;
    static constexpr int kTiles = kTileEmpty + 8 * kTileSlots;  // tile numbers, 8 bytes apart
    static constexpr int kScratch = kTiles + 8 * kTileSlots;    // never read
    static constexpr int kBytes = kScratch + 8;
};
