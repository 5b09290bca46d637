// The highest of a thread's scores of a row, two scores to an instruction.
//
// As integers, the bits of numbers are in the numbers' order where one of them is not negative, and
// in the opposite order where all are.  Of three integers one instruction (VIMNMX3) takes the
// maximum or the minimum, of three fp32 numbers none does.
#pragma once

namespace fa_tune::sm90 {

// The bits of the highest of the scores of row i, or where all are negative of any negative number.
// Not before `number` is there, any number.
template <int kScores>
__device__ __forceinline__ int highest_bits(const float (&s)[kScores], int i, float number) {
    int highest = __float_as_int(number) | 0x80000000;
#pragma unroll
    for (int j = 0; j < kScores / 4; ++j) {
        highest = max(max(highest, __float_as_int(s[4 * j + 2 * i])),
                      __float_as_int(s[4 * j + 2 * i + 1]));
    }
    return highest;
}

// The bits of the highest where all are negative.
template <int kScores>
__device__ __forceinline__ int highest_bits_of_negative(const float (&s)[kScores], int i) {
    int highest = __float_as_int(s[2 * i]);
#pragma unroll
    for (int j = 0; j < kScores / 4; ++j) {
        highest = min(min(highest, __float_as_int(s[4 * j + 2 * i])),
                      __float_as_int(s[4 * j + 2 * i + 1]));
    }
    return highest;
}

}  // namespace fa_tune::sm90
