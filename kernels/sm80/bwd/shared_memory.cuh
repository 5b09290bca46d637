// The plan of a CTA's shared memory, in bytes from its beginning.
//
//     | rows, d_head | rows, d_v | columns, d_head | columns, d_v | P         | dS        | LSE, D
//       B_c            B_c         stages x B_r      stages x B_r   B_c x B_r   B_c x B_r  of
//       columns
//
// Rows are what a CTA keeps, K and V, and columns what it walks over, Q and dO; in dQ's pass it is
// the other way round.  P is there where warps share its rows, dS also where dQ is made of it.
#pragma once

#include "common/swizzle.cuh"
#include "sm80/bwd/config.cuh"

namespace fa_tune::sm80::backward {

template <Sm80BackwardConfig CFG>
struct SharedMemory {
    using RowTile = SmemTile<CFG.B_c, CFG.d_head, true>;
    using RowTileV = SmemTile<CFG.B_c, CFG.d_v(), true>;
    using ColumnTile = SmemTile<CFG.B_r, CFG.d_head, true>;
    using ColumnTileV = SmemTile<CFG.B_r, CFG.d_v(), true>;
    using ScoreTile = SmemTile<CFG.B_c, CFG.B_r, true>;
    static constexpr bool kHasP = CFG.column_warps > 1, kHasDs = kHasP || !CFG.two_pass;

    static constexpr unsigned kRows = 0;
    static constexpr unsigned kRowsV = kRows + RowTile::kBytes;
    static constexpr unsigned kColumns = kRowsV + RowTileV::kBytes;
    static constexpr unsigned kColumnsV = kColumns + CFG.stages * ColumnTile::kBytes;
    static constexpr unsigned kP = kColumnsV + CFG.stages * ColumnTileV::kBytes;
    static constexpr unsigned kDs = kP + (kHasP ? ScoreTile::kBytes : 0);
    static constexpr unsigned kLse = kDs + (kHasDs ? ScoreTile::kBytes : 0);
    static constexpr unsigned kDelta = kLse + 4 * CFG.stages * CFG.B_r;
    static constexpr unsigned kBytes = kDelta + 4 * CFG.stages * CFG.B_r;
};

}  // namespace fa_tune::sm80::backward
