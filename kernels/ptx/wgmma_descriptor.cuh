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

namespace ptx {

constexpr int kSwizzleBytes = 128;                    // width of a panel
constexpr int kSwizzleAtomBytes = 8 * kSwizzleBytes;  // 8 rows: what repeats

// The descriptor of the panel at shared address `start`; `panel_bytes` is the distance to the
// next panel, which the hardware follows only for an n-major operand.
__device__ __forceinline__ unsigned long long wgmma_descriptor(unsigned start, int panel_bytes) {
    const unsigned low = (start >> 4 & 0x3fffu) | static_cast<unsigned>(panel_bytes >> 4) << 16;
    const unsigned high = kSwizzleAtomBytes >> 4 | 1u << 30;
    return static_cast<unsigned long long>(high) << 32 | low;
}

// The same operand `bytes` further on.
__device__ __forceinline__ unsigned long long advance(unsigned long long descriptor, int bytes) {
    return descriptor + static_cast<unsigned>(bytes >> 4);
}

}  // namespace ptx
