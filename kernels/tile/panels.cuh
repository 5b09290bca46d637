// A 16-bit tile as a bulk tensor copy with 128-byte swizzle lays it out.
//
// The columns are cut into panels of 64 (128 bytes), the widest such a box may be.  A panel is
// row-major, and chunk c of row r lies at c XOR (r % 8), as in tile/swizzle.cuh:
//
//     columns     0 .. 63                       64 .. 127
//     row 0     | 0 1 2 3 4 5 6 7 |  panel 0  | 0 1 2 3 4 5 6 7 |  panel 1, kPanelBytes later
//     row 1     | 1 0 3 2 5 4 7 6 |           | 1 0 3 2 5 4 7 6 |
//     ...
//
// Worked example, 64 rows of 128 columns: element (row 5, column 88) is in panel 1, chunk 3;
// 3 XOR 5 = 6; its byte offset is 1 * 8192 + 5 * 128 + 6 * 16 = 8928.
//
// Columns beyond a multiple of 64 take up a whole panel; the copy fills it up with zeros.
#pragma once

#include "tile/swizzle.cuh"

namespace tile {

template <int kRows_, int kColumns_>
struct PanelTile {
    static constexpr int kRows = kRows_;
    static constexpr int kColumns = kColumns_;
    static constexpr int kPanelColumns = 64;
    static constexpr int kRowBytes = 2 * kPanelColumns;  // of a panel
    static constexpr int kChunks = kColumns / 8;
    static constexpr int kPanels = (kColumns + kPanelColumns - 1) / kPanelColumns;
    static constexpr int kPanelBytes = kRows * kRowBytes;
    static constexpr int kBytes = kPanels * kPanelBytes;
    static_assert(kRows % 8 == 0, "a panel is whole periods of the swizzle");

    // Byte offset of the chunk that holds columns [8 chunk, 8 chunk + 8) of `row`.
    __device__ __forceinline__ static unsigned offset(int row, int chunk) {
        return chunk / 8 * kPanelBytes + row * kRowBytes + ((chunk ^ row) & 7) * 16;
    }
};

// A lane's address in a tile of panels; see LaneAddress in tile/swizzle.cuh.
template <int kRows, int kColumns>
struct LaneAddress<PanelTile<kRows, kColumns>> {
    using Tile = PanelTile<kRows, kColumns>;
    static constexpr int kStepsPerPanel = Tile::kPanelColumns / 16;

    unsigned base;  // shared address of (row, chunk)

    __device__ __forceinline__ LaneAddress(unsigned tile_base, int row, int chunk)
        : base(tile_base + Tile::offset(row, chunk)) {}

    __device__ __forceinline__ LaneAddress moved(unsigned bytes) const {
        LaneAddress other = *this;
        other.base += bytes;
        return other;
    }

    __device__ __forceinline__ unsigned at(int steps, int rows) const {
        return (base ^ (32 * (steps % kStepsPerPanel))) +
               steps / kStepsPerPanel * Tile::kPanelBytes + rows * Tile::kRowBytes;
    }
};

}  // namespace tile
