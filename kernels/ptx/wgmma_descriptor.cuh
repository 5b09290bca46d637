// Where wgmma finds an operand in shared memory: the 64-bit matrix descriptor.
// PTX ISA: "Matrix-descriptor format" of wgmma.  Minimum: sm_90a.
//
// A tile is stored in panels of (rows x 128 bytes), 64 16-bit elements wide, as TMA writes a box
// of 64 elements with 128-byte swizzle: the 16-byte chunk c of row r lies at chunk c ^ (r % 8).
// Every panel starts on a 1024-byte boundary (8 rows), so the base offset is 0.
//
//     bits   0-13   start address / 16
//           16-29   leading byte offset / 16     k-major: ignored;  n-major: from panel to panel
//           32-45   stride byte offset / 16      from 8 rows to the next 8: 1024 bytes
//           62-63   1: 128-byte swizzle
//
// Adding to a descriptor moves its start address; every address here is below 2^18 bytes, so no
// carry leaves the field.
#pragma once

namespace fa_tune::ptx {

constexpr int kSwizzleBytes = 128;                    // width of a panel
constexpr int kSwizzleAtomBytes = 8 * kSwizzleBytes;  // 8 rows: what repeats

// Its lower word; the upper one is the same for all.  Kept apart, since addresses are 32-bit sums.
struct WgmmaDescriptor {
    unsigned low;

    // Of the panel at shared address `start`; `panel_bytes` is the distance to the next panel,
    // which the hardware follows only for an n-major operand.
    __device__ __forceinline__ static WgmmaDescriptor of(unsigned start, int panel_bytes) {
        return {(start >> 4 & 0x3fffu) | static_cast<unsigned>(panel_bytes >> 4) << 16};
    }

    // The same operand `bytes` further on.
    __device__ __forceinline__ WgmmaDescriptor advance(int bytes) const {
        return {low + static_cast<unsigned>(bytes >> 4)};
    }

    // The same, in a uniform register, where wgmma wants it.  Of a number that is the same in all
    // lanes anyway the compiler takes the broadcast out, and then moves every step's descriptor
    // there by itself; hence one that differs.
    __device__ __forceinline__ WgmmaDescriptor uniform() const {
        return {__shfl_sync(0xffffffffu, low + threadIdx.x % 32, 0)};
    }

    __device__ __forceinline__ unsigned long long bits() const {
        constexpr unsigned kHigh = kSwizzleAtomBytes >> 4 | 1u << 30;
        return static_cast<unsigned long long>(kHigh) << 32 | low;
    }
};

}  // namespace fa_tune::ptx
