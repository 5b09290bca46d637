// Rows of 16-bit elements in chunks of 16 bytes, the unit of every copy.
//
//     128 columns   | 16 chunks |                      16 threads a row
//      96 columns   | 8 chunks | 4 chunks |             4 threads a row, three times
//      80 columns   | 10 chunks | room for 2 |         16 threads a row, of which 6 have nothing
#pragma once

namespace fa_tune {

__host__ __device__ constexpr int power_of_two_from(int least) {
    int found = 1;
    while (found < least) found *= 2;
    return found;
}

// Columns of a row in shared memory: whole groups of four chunks.
__host__ __device__ constexpr int whole_chunk_groups(int columns) {
    return (columns + 31) / 32 * 32;
}

// Chunks of a row that a pass of copies covers: a power of two that divides whole groups of four,
// and for others one that covers them all.
__host__ __device__ constexpr int chunks_at_once(int chunks) {
    return chunks % 4 == 0 ? chunks & -chunks : power_of_two_from(chunks);
}

}  // namespace fa_tune
