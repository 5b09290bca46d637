// The divisor of a row that one key dominates.
//
//     l = sum_j p_j            O = sum_j round(p_j) V_j  ~  round(w) V_k    where p_k = w is nearly
//     l
//
// Where m is the maximum, w is a power of two, which rounding does not change.  With an older m it
// is any number, and the rounding of it is the only error there is: O divided by l would be off by
// as much.  Divided by l + round(w) - w it is not.
//
// w is known from sums, nearly.  Where it lies half way between two numbers of P's type, it may
// have been rounded to either.  V has numbers of that type, so the right one is that by which O
// has, too.
#pragma once

#include "common/constants.cuh"
#include "common/dtype.cuh"

namespace fa_tune::sm90 {

template <DType DTYPE>
struct DominantWeight {
    static constexpr int kDropped = DTYPE == DType::BF16 ? 16 : 13;  // of the 23 digits of fp32
    static constexpr float kLastPlace = DTYPE == DType::BF16 ? 0x1p-7f : 0x1p-10f;
    static constexpr float kErrorOfSums = DTYPE == DType::BF16 ? 0x1p-22f : 0x1p-20f;
    // Where the others have more than this, in units of half a last place, they leave a larger
    // error than a weight taken for the wrong neighbour does.
    static constexpr float kMostOthers = DTYPE == DType::BF16 ? 0.5f : 0.125f;
    static constexpr int kColumns = 8;  // of a thread, four of which share a row: enough to tell
    // O of others alone is at most this share of their weights times their largest V, but where
    // they are few.
    static constexpr float kMostOfOthers = 0.25f;
    static constexpr float kErrorOfOthers = 0x1p-20f;  // a difference of sums as large as w

    float weight;  // w
    float others;  // what of l may not be w's

    // round(w) - w, if w is what the sums say.
    __device__ __forceinline__ float rounding() const { return round_digits(weight) - weight; }

    // Whether w may be on the other side of half way.
    __device__ __forceinline__ bool unsure(float off) const {
        const float half = last_place() * 0.5f;
        return others < half * kMostOthers &&
               fabsf(off) > half - 2.f * others - weight * kErrorOfSums;
    }

    // round(w) - w, which is `off` or what it is on the other side.  `o` are a thread's O of two
    // rows in turn, two columns each, before any division; `row` says which.
    template <int kOutputs>
    __device__ __forceinline__ float decide(const float (&o)[kOutputs], int row, float off) const {
        const float other = off < 0.f ? off + last_place() : off - last_place();
        const bool nearer =
            distance(o, row, weight + other) < 0.5f * distance(o, row, weight + off);
        return nearer && unsure(off) ? other : off;
    }

    // Whether the key's V is next to nothing, so that O is what the others leave, and the rounding
    // of w no part of it; `v` is the largest of some elements of V.
    template <int kOutputs>
    __device__ __forceinline__ bool has_no_value(const float (&o)[kOutputs], int row,
                                                 float v) const {
        float largest = 0.f;
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
            largest = fmaxf(largest, fabsf(o[4 * (j / 2) + 2 * row + j % 2]));
        }
        return quad_max(largest) < (others + weight * kErrorOfOthers) * v * kMostOfOthers;
    }

  private:
    // How far a row of O over a weight is from numbers of the type.
    template <int kOutputs>
    __device__ __forceinline__ static float distance(const float (&o)[kOutputs], int row,
                                                     float rounded) {
        const float inverse = 1.f / rounded;
        float total = 0.f;
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
            const float x = o[4 * (j / 2) + 2 * row + j % 2] * inverse;
            total += fabsf(x - round_digits(x));
        }
        return quad_sum(total);
    }

    // x with as many digits as the type has, whatever its exponent.
    __device__ __forceinline__ static float round_digits(float x) {
        const unsigned bits = __float_as_int(x);
        const unsigned half = (1u << (kDropped - 1)) - 1u + (bits >> kDropped & 1u);
        return __int_as_float((bits + half) & ~0u << kDropped);
    }

    // What w's last digit counts.
    __device__ __forceinline__ float last_place() const {
        return __int_as_float(__float_as_int(weight) & 0x7f800000u) * kLastPlace;
    }
};

}  // namespace fa_tune::sm90
