// Where element (row, column) of a 16-bit tile lies in shared memory.
//
// A tile is row-major; a row is cut into chunks of 16 bytes, the unit of every copy and of
// one ldmatrix row.  ldmatrix reads one chunk column of 8 consecutive rows at a time.  With
// 64 or 128 elements per row all 8 start in the same 4 of the 32 banks: 8 accesses, one
// after another.  The swizzle moves chunk c of row r to c XOR (r % 8):
//
//     row 0 |  0  1  2  3  4  5  6  7 |       chunk column 0 of rows 0..7 now lies in
//     row 1 |  1  0  3  2  5  4  7  6 |       eight different chunk positions, that is
//     row 2 |  2  3  0  1  6  7  4  5 |       in all 32 banks: one access.
//     row 3 |  3  2  1  0  7  6  5  4 |
//     ...
//     row 7 |  7  6  5  4  3  2  1  0 |
//
// Worked example, 128 columns (256 bytes a row): element (row 5, column 24) is in chunk
// 24 / 8 = 3; 3 XOR 5 = 6; its byte offset is 5 * 256 + 6 * 16 + 0 = 1376.
//
// A row whose chunks come in groups of 4 only (96 columns: 12 chunks, 192 bytes) already
// alternates between two halves of the banks, so there r / 2 % 4 is what is XORed.  So is it
// where chunks are no whole groups (80 columns: 10 chunks): a row is as long as if they were.
//
// Rows may be further apart than their columns take up: then two tiles of unlike columns can
// follow each other in one place, row by row.
#pragma once

#include "common/chunks.cuh"

namespace fa_tune {

template <int kRows_, int kColumns_, bool kSwizzled_, int kPitch_ = kColumns_>
struct SmemTile {
    static constexpr int kRows = kRows_;
    static constexpr int kColumns = kColumns_;
    static constexpr bool kSwizzled = kSwizzled_;
    static constexpr int kPitch = whole_chunk_groups(kPitch_);
    static constexpr int kRowBytes = 2 * kPitch;
    static constexpr int kChunks = kColumns / 8;
    static constexpr int kBytes = kRows * kRowBytes;
    static constexpr bool kEightChunkGroups = kPitch % 64 == 0;
    static_assert(kColumns % 16 == 0 && kPitch >= kColumns, "a tile row must be whole k-steps");

    // What chunk numbers of this row are XORed with; depends on row % 8 alone.
    __device__ __forceinline__ static int row_mask(int row) {
        if constexpr (!kSwizzled) return 0;
        return kEightChunkGroups ? (row & 7) : ((row >> 1) & 3);
    }

    // Byte offset of the chunk that holds columns [8 chunk, 8 chunk + 8) of `row`.
    __device__ __forceinline__ static unsigned offset(int row, int chunk) {
        return row * kRowBytes + (chunk ^ row_mask(row)) * 16;
    }
};

// A lane's address in a tile, prepared so that stepping along the chunks is one operation.
// kRowBytes a power of two: the chunk bits of the address are the lane's own and stepping by
// an even number of chunks is one XOR with a constant.  Otherwise the mask is kept apart.
template <typename Tile>
struct LaneAddress {
    static constexpr bool kPowerOfTwo = (Tile::kRowBytes & (Tile::kRowBytes - 1)) == 0;

    unsigned base;  // shared address of (row, chunk) or, with `mask`, of (row, 0)
    int mask;

    // `chunk`: 0 or 1, the lane's half of a 16-element step, and bits that twice the steps asked
    // for do not have.
    __device__ __forceinline__ LaneAddress(unsigned tile_base, int row, int chunk) {
        if constexpr (!Tile::kSwizzled || kPowerOfTwo) {
            base = tile_base + Tile::offset(row, chunk);
            mask = 0;
        } else {
            base = tile_base + row * Tile::kRowBytes;
            mask = Tile::row_mask(row) ^ chunk;
        }
    }

    // The same lane in a tile that lies `bytes` further on, a whole number of rows.
    __device__ __forceinline__ LaneAddress moved(unsigned bytes) const {
        LaneAddress other = *this;
        other.base += bytes;
        return other;
    }

    // Address `steps` of 16 elements along the row and `rows` (a multiple of 8) further down.
    __device__ __forceinline__ unsigned at(int steps, int rows) const {
        const unsigned down = rows * Tile::kRowBytes;
        if constexpr (!Tile::kSwizzled) return base + 32 * steps + down;
        if constexpr (kPowerOfTwo) return (base ^ (32 * steps)) + down;
        return base + ((2 * steps) ^ mask) * 16 + down;
    }
};

// A 16-bit tile as a bulk tensor copy with 128-byte swizzle lays it out.
//
// The columns are cut into panels of 64 (128 bytes), the widest such a box may be.  A panel is
// row-major, and chunk c of row r lies at c XOR (r % 8), as in common/swizzle.cuh:
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

// A lane's address in a tile of panels; see LaneAddress in common/swizzle.cuh.
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

}  // namespace fa_tune
